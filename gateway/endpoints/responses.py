"""`POST /v1/responses`: OpenAI's newer API over the same generation as chats."""

from __future__ import annotations

import uuid

from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.stream import EventStream
from gateway.context import context_of
from gateway.endpoints import chat
from gateway.endpoints.body import read_json
from gateway.endpoints.large import beside
from gateway.endpoints.responses_answer import ResponsesAnswer
from gateway.protocol.responses import ResponsesRequest
from gateway.requests.response_items import items_of
from gateway.requests.responses import chat_of, check
from quire.errors import InvalidRequest, NotFound


async def create(request: Request) -> Response | EventStream:
    """Answers a turn of a conversation."""
    body = await read_json(request, ResponsesRequest)
    check(body)
    context = context_of(request)
    if body.previous_response_id:
        raise NotFound(
            f"There is no response {body.previous_response_id[:64]!r}: this server stores none. Send the whole "
            "conversation as input.", parameter="previous_response_id",
        )  # fmt: skip
    if body.background:
        raise InvalidRequest("background needs a server that stores responses.", parameter="background")
    model = context.fleet.model(body.model)
    asked = await beside(request, chat_of, body, (), items_of(body.input), model.max_model_len)
    state = await context.pipeline.start(await chat.prepare(request, asked, [asked.messages]))
    return await ResponsesAnswer(context, body, state, uuid.uuid4().hex, is_stored=False).respond(request)
