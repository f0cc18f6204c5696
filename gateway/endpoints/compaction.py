"""`POST /v1/responses/compact`: the model summarizes a conversation, which then goes on from the summary."""

from __future__ import annotations

import time
import uuid

from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.collecting import collect
from gateway.context import context_of
from gateway.endpoints import chat
from gateway.endpoints.body import read_json
from gateway.endpoints.large import beside
from gateway.errors import json_response
from gateway.protocol.compaction import CompactedResponse, CompactRequest
from gateway.protocol.responses import InputTokensDetails, OutputTokensDetails, ResponseUsage
from gateway.requests.caller import tenant_of
from gateway.requests.compaction import summary_request
from gateway.requests.field_names import told_as
from gateway.requests.input_items import told_item
from gateway.requests.response_items import items_of
from gateway.requests.responses import FIELDS
from gateway.requests.state import RequestState
from gateway.requests.summaries import sealed
from quire.errors import Internal
from quire.runners import GENERATE


async def compact(request: Request) -> Response:
    """Returns the user's messages, and an item that stands for the rest of the conversation.

    Raises:
        InvalidRequest: a field is invalid.
        NotFound: there is no such model, or no such previous response.
        Internal: the model has written no summary.
    """
    body, context = await read_json(request, CompactRequest), context_of(request)
    model, previous = context.fleet.model(body.model, GENERATE), body.previous_response_id
    earlier = await context.responses.items(previous, tenant_of(request)) if previous else []
    given = items_of(body.input or "") if body.input or not earlier else []
    conversation = await beside(request, summary_request, body, earlier, given, model.max_model_len)
    with told_as(FIELDS):
        generation = await chat.prepare(request, conversation, [conversation.messages])
    state = await context.pipeline.start(generation)
    (choice,) = await collect(state, 1, request.receive)
    if not (summary := choice.content.strip()):
        raise Internal("The model has not written a summary. Go on with the conversation itself.")
    identity = uuid.uuid4().hex
    users = [item for item in (*earlier, *given) if item.get("type", "message") == "message" and item["role"] == "user"]
    return json_response(
        CompactedResponse(
            f"resp_{identity}", int(time.time()),
            [
                *(told_item(item, identity, index) for index, item in enumerate(users)),
                {"type": "compaction", "id": f"cmp_{identity}", "encrypted_content": sealed(summary)},
            ],
            _usage(state, choice.token_ids, told_cached=context.options.enable_prompt_tokens_details),
        )
    )  # fmt: skip


def _usage(state: RequestState, token_ids: list[int], *, told_cached: bool) -> ResponseUsage:
    prompt_tokens, thought = state.prompt_tokens, 0
    if thinking := state.request.thinking:
        (counter,) = thinking.counters(1)
        counter.advance(token_ids)
        thought = counter.num_tokens
    return ResponseUsage(
        prompt_tokens, len(token_ids), prompt_tokens + len(token_ids),
        InputTokensDetails(state.cached_tokens if told_cached else 0), OutputTokensDetails(thought),
    )  # fmt: skip
