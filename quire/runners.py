"""Runners: a worker generates, computes embeddings and classes of texts (pooling), or encodes media for others."""

from __future__ import annotations

from quire.errors import InvalidRequest

GENERATE, POOLING = "generate", "pooling"
ENCODE = "encode"  # no value of --runner: see --mm-encoder-only
_USES = {
    GENERATE: "It generates text, with /v1/chat/completions, /v1/completions and similar endpoints.",
    POOLING: (
        "It computes embeddings or classes of texts, with /v1/embeddings, /pooling, /classify, /score and /rerank."
    ),
}


def wrong_runner(model: str, served_by: str) -> InvalidRequest:
    """The error for a request whose model is served with the other runner."""
    if served_by == ENCODE:
        return InvalidRequest(
            f"This worker of the model {model[:200]!r} only encodes images, videos and audio for others "
            "(--mm-encoder-only). This request needs a worker without that option.",
            parameter="model",
        )
    other = POOLING if served_by == GENERATE else GENERATE
    return InvalidRequest(
        f"The model {model[:200]!r} is served with --runner {served_by}. {_USES[served_by]} This request needs a model "
        f"that is served with --runner {other}.",
        parameter="model",
    )
