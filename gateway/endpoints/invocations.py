"""`POST /invocations`: the single path that some platforms call, dispatched by the fields of the body."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.stream import EventStream
from gateway.context import context_of
from gateway.endpoints import chat, completions, embeddings, scoring
from gateway.endpoints.body import decode_json, parse, read_content
from gateway.endpoints.large import beside
from gateway.protocol.chat import ChatCompletionRequest
from gateway.protocol.completions import CompletionRequest
from gateway.protocol.pooling import ClassifyRequest, EmbeddingRequest, PoolingRequest
from gateway.protocol.scoring import RerankRequest, ScoreRequest
from quire.errors import InvalidRequest

_NOTHING = msgspec.Raw(b"null")


class _Kind(msgspec.Struct):
    """The fields that distinguish kinds of requests."""

    messages: msgspec.Raw = _NOTHING
    prompt: msgspec.Raw = _NOTHING
    prompt_embeds: msgspec.Raw = _NOTHING
    input: msgspec.Raw = _NOTHING
    query: msgspec.Raw = _NOTHING
    text_1: msgspec.Raw = _NOTHING
    data_1: msgspec.Raw = _NOTHING
    queries: msgspec.Raw = _NOTHING
    model: str | None = None

    def has(self, name: str) -> bool:
        """Whether the body has the field."""
        return bytes(getattr(self, name)) != b"null"


async def invocations(request: Request) -> Response | EventStream:
    """Dispatches a request by the model and the fields of its body.

    With a generative model, it is a chat if there are messages, otherwise a completion. With a pooling model, it is a
    reranking if there is a query, scoring if there are texts to compare, and otherwise the model's own task.

    Raises:
        InvalidRequest: it is none of these.
    """
    content = await read_content(request)
    kind = await beside(request, decode_json, content, _Kind)
    model = context_of(request).fleet.model(kind.model)
    if model.pooling is not None:
        return await _pooled(request, content, kind, model.pooling.tasks)
    if kind.has("messages"):
        return await chat.complete(request, await parse(request, content, ChatCompletionRequest))
    if kind.has("prompt") or kind.has("prompt_embeds"):
        return await completions.complete(request, await parse(request, content, CompletionRequest))
    raise InvalidRequest("Send messages, for a chat, or prompt, for a completion.", parameter="messages")


async def _pooled(request: Request, content: bytes, kind: _Kind, tasks: Sequence[str]) -> Response:
    """Dispatches a request for a pooling model."""
    if kind.has("query"):
        return await scoring.reranked(request, await parse(request, content, RerankRequest))
    if any(map(kind.has, ("text_1", "data_1", "queries"))):
        return await scoring.scored(request, await parse(request, content, ScoreRequest))
    if "embed" in tasks:
        return await embeddings.embed(request, await parse(request, content, EmbeddingRequest))
    if "classify" in tasks:
        return await embeddings.classified(request, await parse(request, content, ClassifyRequest))
    return await embeddings.pool(request, await parse(request, content, PoolingRequest))
