"""`POST /invocations`: the one path that some platforms call, for whatever the body is."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.stream import EventStream
from gateway.endpoints import chat, completions
from gateway.endpoints.body import decode_json, parse, read_content
from gateway.endpoints.large import beside
from gateway.protocol.chat import ChatCompletionRequest
from gateway.protocol.completions import CompletionRequest
from quire.errors import InvalidRequest

_NOTHING = msgspec.Raw(b"null")


class _Kind(msgspec.Struct):
    """What tells one kind of request from another."""

    messages: msgspec.Raw = _NOTHING
    prompt: msgspec.Raw = _NOTHING
    prompt_embeds: msgspec.Raw = _NOTHING

    def has(self, name: str) -> bool:
        """Whether the body has the field."""
        return bytes(getattr(self, name)) != b"null"


async def invocations(request: Request) -> Response | EventStream:
    """A conversation where there are messages, and otherwise a completion.

    Raises:
        InvalidRequest: it is neither.
    """
    content = await read_content(request)
    kind = await beside(request, decode_json, content, _Kind)
    if kind.has("messages"):
        return await chat.complete(request, await parse(request, content, ChatCompletionRequest))
    if kind.has("prompt") or kind.has("prompt_embeds"):
        return await completions.complete(request, await parse(request, content, CompletionRequest))
    raise InvalidRequest("Send messages, for a chat, or prompt, for a completion.", parameter="messages")
