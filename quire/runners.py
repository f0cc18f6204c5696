"""What a model is served for: a worker generates, or makes vectors and classes of texts, and never both."""

from __future__ import annotations

from quire.errors import InvalidRequest

GENERATE, POOLING = "generate", "pooling"
_USES = {
    GENERATE: "It writes answers, by /v1/chat/completions, /v1/completions and their like.",
    POOLING: "It makes vectors or classes of texts, by /v1/embeddings, /pooling, /classify, /score and /rerank.",
}


def wrong_runner(model: str, served_by: str) -> InvalidRequest:
    """What a request gets for a model that is served by the other runner."""
    other = POOLING if served_by == GENERATE else GENERATE
    return InvalidRequest(
        f"The model {model[:200]!r} is served with --runner {served_by}. {_USES[served_by]} This request needs a model "
        f"that is served with --runner {other}.",
        parameter="model",
    )
