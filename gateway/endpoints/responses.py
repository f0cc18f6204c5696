"""`/v1/responses`: OpenAI's Responses API, built on chat generation, and access to stored responses."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.stream import EventStream
from gateway.context import GatewayContext, context_of
from gateway.endpoints import chat, large
from gateway.endpoints.body import read_json
from gateway.endpoints.large import beside
from gateway.endpoints.responses_answer import ResponsesAnswer
from gateway.errors import json_response, json_text_response
from gateway.protocol.chat import ChatCompletionRequest
from gateway.protocol.responses import DeletedResponse, InputTokens, ResponsesRequest
from gateway.requests.caller import tenant_of
from gateway.requests.field_names import told_as
from gateway.requests.input_items import page_of
from gateway.requests.response_items import Item, items_json, items_of
from gateway.requests.response_tools import left_out
from gateway.requests.responses import FIELDS, chat_of, check
from gateway.requests.validate import check_logprobs
from gateway.response_store.run import Follower, Replay, Run
from quire.errors import InvalidRequest
from quire.runners import GENERATE


@dataclass(frozen=True)
class Turn:
    """A requested turn, and the conversation up to it."""

    body: ResponsesRequest
    items: Sequence[Item]
    chat: ChatCompletionRequest


async def create(request: Request) -> Response | EventStream:
    """Answers a turn of a conversation.

    Raises:
        InvalidRequest: a field is invalid; or it is a background request, and responses are not stored.
        NotFound: there is no such model, or no such previous response.
    """
    turn = await asked(request)
    context, tenant, body = context_of(request), tenant_of(request), turn.body
    is_kept = context.responses.are_kept and body.store is not False
    items = await beside(request, items_json, turn.items) if is_kept else b""
    with told_as(FIELDS):
        generation = await chat.prepare(request, turn.chat, [turn.chat.messages])
    # Logprobs are sent with the text of their tokens, which parsers separate from other text.
    by_token = bool(generation.parsers) and generation.sampling.logprobs is not None
    state = await context.pipeline.start(replace(generation, token_by_token=by_token))
    answer = ResponsesAnswer(context, body, state, uuid.uuid4().hex, is_stored=is_kept)
    if not is_kept:
        return await answer.respond(request)
    try:
        return await _kept(request, context, answer, tenant, items)
    except BaseException:
        state.cancel()
        raise


async def asked(request: Request) -> Turn:
    """Reads and converts the request; raises as `create`."""
    body = await read_json(request, ResponsesRequest)
    check(body)
    context = context_of(request)
    context.left_out_tools.tell(left_out(body.tools or ()))
    if body.background:
        context.responses.require(body.store)
    model = context.fleet.model(body.model, GENERATE)
    check_logprobs("top_logprobs", body.top_logprobs, model)
    previous, given = body.previous_response_id, items_of(body.input)
    earlier = await context.responses.items(previous, tenant_of(request)) if previous else []
    conversation = await beside(request, chat_of, body, earlier, given, model.max_model_len)
    return Turn(body, [*earlier, *given], conversation)


async def input_tokens(request: Request) -> Response:
    """Counts the tokens of a turn's input; raises as `create`."""
    turn = await asked(request)
    with told_as(FIELDS):
        generation = await chat.prepare(request, turn.chat, [turn.chat.messages], renders=True)
    return json_response(InputTokens(generation.prompts[0].num_tokens))


async def _kept(
    request: Request, context: GatewayContext, answer: ResponsesAnswer, tenant: str, items: bytes
) -> Response | EventStream:
    """Answers with a response that is stored; a background or streamed one is stored as it progresses."""
    in_background = answer.body.background
    if not in_background and not answer.streams:
        await answer.read_whole(request)
        await context.responses.keep(answer.body, tenant, items)
        return await answer.whole(request)
    run = Run(context.responses.store, answer.state, answer)
    await context.responses.start(run, tenant, items, in_background=in_background)
    if answer.streams:
        follower = Follower(run) if in_background else Follower(run, leave=run.stop)
        return EventStream(follower, Replay(), context.options.sse_keep_alive_interval)
    return json_response(answer.body)


async def kept(request: Request) -> Response | EventStream:
    """Serves or deletes a stored response."""
    return await (_delete if request.method == "DELETE" else _retrieve)(request)


async def _retrieve(request: Request) -> Response | EventStream:
    """Returns a stored response (without output while in progress), or streams its events after a given number.

    Raises:
        InvalidRequest: a parameter is malformed, or the events were not stored.
        NotFound: this caller has no response with this id.
    """
    identity, tenant, asked = request.path_params["response_id"], tenant_of(request), request.query_params
    context = context_of(request)
    responses = context.responses
    streams, after = asked.get("stream", "false").lower(), asked.get("starting_after")
    if streams not in ("true", "false"):
        raise InvalidRequest(f"stream is {streams[:50]!r}; it must be true or false.", parameter="stream")
    if after is not None and (streams == "false" or not _is_number(after)):
        raise InvalidRequest(
            f"starting_after is {after[:50]!r}; it must be the number of an event, with stream=true.",
            parameter="starting_after",
        )
    if streams == "true":
        follower = await responses.follow(identity, tenant, -1 if after is None else int(after))
        return EventStream(follower, Replay(), context.options.sse_keep_alive_interval)
    return json_text_response((await responses.find(identity, tenant)).body)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


async def _delete(request: Request) -> Response:
    """Deletes a response.

    Raises:
        NotFound: this caller has no response with this id.
    """
    identity = request.path_params["response_id"]
    await context_of(request).responses.delete(identity, tenant_of(request))
    return json_response(DeletedResponse(identity))


async def input_items(request: Request) -> Response:
    """Lists the input items of a response, including the conversation before it.

    Raises:
        InvalidRequest: a parameter is malformed.
        NotFound: this caller has no response with this id.
    """
    identity = request.path_params["response_id"]
    found = await context_of(request).responses.find(identity, tenant_of(request))
    items = msgspec.json.decode(found.items)
    return await large.answer(request, len(found.items) // 4, lambda: page_of(items, identity, request.query_params))


async def cancel(request: Request) -> Response:
    """Cancels a response in progress, and returns it.

    Raises:
        NotFound: this caller has no response with this id.
    """
    responses = context_of(request).responses
    return json_text_response(await responses.cancel(request.path_params["response_id"], tenant_of(request)))
