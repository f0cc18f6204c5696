"""`/v1/…/render`: converts requests to the format of `/inference/v1/generate`. Nothing is generated."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from gateway.context import context_of
from gateway.endpoints import chat, cohere_chat, completions, messages, responses
from gateway.endpoints.body import read_json
from gateway.errors import json_response
from gateway.protocol.chat import ChatCompletionRequest
from gateway.protocol.completions import CompletionRequest
from gateway.requests.anthropic import FIELDS as MESSAGES_FIELDS
from gateway.requests.cohere_chat import FIELDS as COHERE_FIELDS
from gateway.requests.constraint import constraint_of
from gateway.requests.field_names import told_as
from gateway.requests.responses import FIELDS as RESPONSES_FIELDS
from gateway.requests.token_generation import rendered
from quire.errors import InvalidRequest


async def render_chat(request: Request) -> Response:
    """Renders a chat request."""
    return await _chat(request, await read_json(request, ChatCompletionRequest))


async def render_messages(request: Request) -> Response:
    """Renders a request of Anthropic's API."""
    _, conversation = await messages.asked(request)
    with told_as(MESSAGES_FIELDS):
        return await _chat(request, conversation)


async def render_response(request: Request) -> Response:
    """Renders a request of OpenAI's Responses API."""
    turn = await responses.asked(request)
    with told_as(RESPONSES_FIELDS):
        return await _chat(request, turn.chat)


async def render_cohere_chat(request: Request) -> Response:
    """Renders a request of Cohere's chat API."""
    _, conversation = await cohere_chat.asked(request)
    with told_as(COHERE_FIELDS):
        return await _chat(request, conversation)


async def render_completion(request: Request) -> Response:
    """Renders a completion request; each prompt becomes a request of its own."""
    body = await read_json(request, CompletionRequest)
    context_of(request).require_tokenizer("Rendering")
    if body.prompt_embeds is not None:
        raise InvalidRequest(
            "prompt_embeds cannot be rendered, because they are not token ids.", parameter="prompt_embeds"
        )
    _check(body)
    generation, wanted = await completions.prepare(request, body, renders=True), constraint_of(body)
    return json_response([rendered(body, generation, number, wanted) for number in range(len(generation.prompts))])


async def _chat(request: Request, body: ChatCompletionRequest) -> Response:
    _check(body)
    generation = await chat.prepare(request, body, [body.messages], renders=True)
    if generation.prompts[0].images:
        raise InvalidRequest(
            "A conversation with images, videos or audio cannot be rendered for /inference/v1/generate, which takes "
            "token ids only; send it to /v1/chat/completions.",
            parameter="messages",
        )
    _, wanted = await chat.asked_of(request, body)
    return json_response(rendered(body, generation, 0, wanted))


def _check(body: ChatCompletionRequest | CompletionRequest) -> None:
    for name in ("use_beam_search", "echo"):
        if getattr(body, name):
            raise InvalidRequest(f"{name} is not supported by /inference/v1/generate; leave it out.", parameter=name)
