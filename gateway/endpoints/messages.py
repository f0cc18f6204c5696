"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API, built on chat generation."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.stream import EventStream
from gateway.context import context_of
from gateway.endpoints import chat, tokens
from gateway.endpoints.body import read_json
from gateway.endpoints.large import beside
from gateway.endpoints.messages_answer import MessagesAnswer
from gateway.errors import json_response
from gateway.protocol.chat import ChatCompletionRequest
from gateway.protocol.messages import CountTokensRequest, CountTokensResponse, MessagesRequest
from gateway.requests.anthropic import FIELDS, chat_of, left_out, tokenize_request_of
from gateway.requests.field_names import told_as
from gateway.requests.validate import check_generation


async def messages(request: Request) -> Response | EventStream:
    """Continues a conversation."""
    body, conversation = await asked(request)
    with told_as(FIELDS):
        generation = await chat.prepare(request, conversation, [conversation.messages])
    context = context_of(request)
    return await MessagesAnswer(context, body, await context.pipeline.start(generation)).respond(request)


async def asked(request: Request) -> tuple[MessagesRequest, ChatCompletionRequest]:
    """Returns the body, and the chat request it converts to.

    Raises:
        InvalidRequest: a field is invalid.
    """
    body = await read_json(request, MessagesRequest)
    context_of(request).left_out_tools.tell(left_out(body.tools))
    return body, await beside(request, chat_of, body)


async def count_tokens(request: Request) -> Response:
    """Counts the tokens of a conversation."""
    asked = await read_json(request, CountTokensRequest)
    body = await beside(request, tokenize_request_of, asked)
    context = context_of(request)
    context.require_tokenizer("A conversation", "messages")
    check_generation(asked, context.fleet.model(asked.model))
    with told_as(FIELDS):
        sequence = await tokens.sequence_of(request, body, context)
    return json_response(CountTokensResponse(sequence.num_tokens))
