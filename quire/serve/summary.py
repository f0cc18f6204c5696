"""What `quire serve` prints once the stack is ready."""

from __future__ import annotations

import json
from collections.abc import Mapping

import click

import quire
from quire.options.tokenizer_init import SKIP_FLAG
from quire.v1 import common_pb2, tokenizer_pb2


def format_summary(
    model: common_pb2.ModelInfo, *, workers: int, seconds: float, url: str, router: str,
    services: Mapping[str, tuple[str, int]], tokenizer: tokenizer_pb2.GetTokenizerInfoResponse | None, api_key: bool,
    log: str, parsers: Mapping[str, str | None],
) -> str:  # fmt: skip
    """The start-up summary, one fact a line.

    Args:
        seconds: from the command to readiness.
        url: of the gateway, without path.
        router: host:port of the router's gRPC service.
        services: name → host:port of its gRPC service, and port of its metrics.
        tokenizer: decides whether the example is a chat; none where there are token ids alone.
        api_key: whether the API asks for a key.
        log: file of all log lines; "-" is the terminal.
        parsers: what they find in answers → their names, empty for none.
    """
    tokens = model.kv_cache_tokens
    concurrency = tokens / model.max_model_len
    rows = {
        "model": f"{model.served_model_names[0]} ({model.architecture}, {model.dtype})",
        "device": f"{model.device}, {model.attention_backend} attention, tensor parallel {model.tensor_parallel_size}",
        "workers": str(workers),
        "KV cache": f"{tokens:,} tokens a worker ({model.num_kv_blocks:,} blocks of {model.block_size})",
        **({"states": _states(model)} if model.state_bytes else {}),
        **({"draft": f"{model.draft_cache_bytes / 2**20:,.1f} MiB beside it"} if model.draft_cache_bytes else {}),
        "concurrency": f"{concurrency:.1f} x {model.max_model_len:,} tokens a request at full length, "
        f"at most {model.max_num_seqs} sequences",
        "API": f"{url}/v1    docs {url}/docs    metrics {url}/metrics",
        **{what: f"told apart by the parser {name}" for what, name in parsers.items() if name},
        "fleet": f"quire workers --router-address {router}",
        **{
            name: f"gRPC {address}    metrics http://127.0.0.1:{port}/metrics"
            for name, (address, port) in services.items()
        },
        **({} if tokenizer else {"tokenizer": f"none ({SKIP_FLAG}): token ids in, token ids out"}),
        **({} if log == "-" else {"log": log}),
        "try": _curl(url, _example(model.served_model_names[0], tokenizer), api_key),
    }
    width = max(len(name) for name in rows)
    head = click.style(f"Quire {quire.__version__} is ready after {seconds:.1f} s", bold=True)
    return "\n".join([head, *(f"  {name:<{width}}  {value}" for name, value in rows.items())])


def _states(model: common_pb2.ModelInfo) -> str:
    """Of recurrent layers."""
    size = f"{model.state_bytes / 2**20:,.1f} MiB for {model.max_num_seqs} sequences"
    return f"{size}; no prefix caching, for a state is of a sequence's last token alone"


def _example(model: str, tokenizer: tokenizer_pb2.GetTokenizerInfoResponse | None) -> dict[str, object]:
    """The body of a request that the server answers."""
    body: dict[str, object] = {"model": model, "max_tokens": 32}
    if tokenizer is None:
        return body | {"prompt": [1, 2, 3]}
    if tokenizer.has_chat_template:
        return body | {"messages": [{"role": "user", "content": "Hello!"}]}
    return body | {"prompt": "Hello"}


def _curl(url: str, body: Mapping[str, object], api_key: bool) -> str:
    path = "chat/completions" if "messages" in body else "completions"
    key = " -H 'Authorization: Bearer '$QUIRE_API_KEY" if api_key else ""
    return f"curl {url}/v1/{path} -H 'Content-Type: application/json'{key} -d '{json.dumps(body)}'"
