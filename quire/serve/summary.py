"""Formats what `quire serve` prints once the stack is ready."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

import click

import quire
from quire.options.tokenizer_init import SKIP_FLAG
from quire.runners import POOLING
from quire.unix_socket import HOST, socket_path
from quire.v1 import common_pb2, tokenizer_pb2


def format_summary(
    model: common_pb2.ModelInfo, *, workers: int, encoders: int = 0, seconds: float, url: str, router: str,
    services: Mapping[str, tuple[str, int]], tokenizer: tokenizer_pb2.GetTokenizerInfoResponse | None, api_key: bool,
    log: str, parsers: Mapping[str, str | None],
) -> str:  # fmt: skip
    """The startup summary, one fact per line.

    Args:
        encoders: number of workers besides these that only encode images, videos and audio.
        seconds: time from the command to readiness.
        url: URL of the gateway, without a path.
        router: host:port of the router's gRPC service.
        services: name → host:port of its gRPC service, and its metrics port.
        tokenizer: determines whether the example is a chat; None if the stack handles only token ids.
        api_key: whether the API requires a key.
        log: the log file; "-" is the terminal.
        parsers: what is found in answers → name of its parser, empty for none.
    """
    rows = {
        "model": f"{model.served_model_names[0]} ({model.architecture}, {model.dtype})",
        "device": f"{model.device}, {model.attention_backend} attention, tensor parallel {model.tensor_parallel_size}",
        "workers": str(workers),
        **({"encoders": str(encoders)} if encoders else {}),
        **(_pooling(model) if model.runner == POOLING else _memory(model)),
        **({"images": "read in conversations"} if model.accepts_images else {}),
        **({"videos": "read in conversations"} if model.accepts_videos else {}),
        **({"audio": "read in conversations, and transcribed"} if model.accepts_audio else {}),
        "API": _api(url),
        **{what: f"parsed by {name}" for what, name in parsers.items() if name},
        "fleet": f"quire workers --router-address {router}",
        **{
            name: f"gRPC {address}    metrics http://127.0.0.1:{port}/metrics"
            for name, (address, port) in services.items()
        },
        **({} if tokenizer else {"tokenizer": f"none ({SKIP_FLAG}): token ids in, token ids out"}),
        **({} if log == "-" else {"log": log}),
        **({} if _is_grpc(url) else {"try": _curl(url, _example(model, tokenizer), api_key)}),
    }
    width = max(len(name) for name in rows)
    head = click.style(f"Quire {quire.__version__} is ready after {seconds:.1f} s", bold=True)
    return "\n".join([head, *(f"  {name:<{width}}  {value}" for name, value in rows.items())])


def _is_grpc(url: str) -> bool:
    return url.startswith("grpc://")


def _api(url: str) -> str:
    """The gateway's URL, and what else it serves."""
    if _is_grpc(url):
        return f"{url} (vllm.grpc.engine.VllmEngine, with reflection and health)"
    return url if socket_path(url) else f"{url}/v1    docs {url}/docs    metrics {url}/metrics"


def _memory(model: common_pb2.ModelInfo) -> dict[str, str]:
    """Rows on the room for sequences."""
    tokens = model.kv_cache_tokens
    return {
        "KV cache": f"{tokens:,} tokens per worker ({model.num_kv_blocks:,} blocks of {model.block_size})",
        **({"states": _states(model)} if model.state_bytes else {}),
        **({"host tier": _host_tier(model)} if model.num_host_blocks else {}),
        **({"draft": f"{model.draft_cache_bytes / 2**20:,.1f} MiB in addition"} if model.draft_cache_bytes else {}),
        "concurrency": f"{tokens / model.max_model_len:.1f} x {model.max_model_len:,} tokens per request at full "
        f"length, at most {model.max_num_seqs} sequences",
    }


def _pooling(model: common_pb2.ModelInfo) -> dict[str, str]:
    """Rows on the results of pooling."""
    pooling = model.pooling
    names = [common_pb2.PoolingTask.Name(task).removeprefix("POOLING_TASK_").lower() for task in pooling.tasks]
    values = f"{pooling.num_labels:,} classes" if pooling.num_labels else f"{pooling.embedding_size:,} values"
    return {
        "pooling": f"{', '.join(names)} ({pooling.pooling_type}; {values})",
        "steps": f"{model.max_num_batched_tokens:,} tokens each, texts of up to {model.max_model_len:,}",
    }


def _states(model: common_pb2.ModelInfo) -> str:
    """Describes the memory for the states of recurrent layers."""
    size = f"{model.state_bytes / 2**20:,.1f} MiB for {model.max_num_seqs} sequences"
    return f"{size}; the prefix cache has room for {model.num_snapshots:,} more" if model.num_snapshots else size


def _host_tier(model: common_pb2.ModelInfo) -> str:
    """Describes what host memory keeps of the prefix cache."""
    blocks = f"{model.num_host_blocks:,} more blocks"
    return f"{blocks} and {model.num_host_snapshots:,} more states" if model.num_host_snapshots else blocks


def _example(model: common_pb2.ModelInfo, tokenizer: tokenizer_pb2.GetTokenizerInfoResponse | None) -> tuple[str, str]:
    """Path and contents of an example request that the server can answer."""
    if model.accepts_audio and tokenizer:
        return "v1/audio/transcriptions", f"-F file=@speech.mp3 -F model={shlex.quote(model.served_model_names[0])}"
    path, body = _json_example(model, tokenizer)
    return path, f"-H 'Content-Type: application/json' -d '{json.dumps(body)}'"


def _json_example(
    model: common_pb2.ModelInfo, tokenizer: tokenizer_pb2.GetTokenizerInfoResponse | None
) -> tuple[str, dict[str, object]]:
    name = model.served_model_names[0]
    if model.runner == POOLING:
        embeds = "pooling" if model.pooling.is_late_interaction else "v1/embeddings"
        return "classify" if model.pooling.num_labels else embeds, {
            "model": name,
            "input": "Hello" if tokenizer else [1, 2, 3],
        }
    body: dict[str, object] = {"model": name, "max_tokens": 32}
    if tokenizer is None:
        return "v1/completions", body | {"prompt": [1, 2, 3]}
    if tokenizer.has_chat_template:
        return "v1/chat/completions", body | {"messages": [{"role": "user", "content": "Hello!"}]}
    return "v1/completions", body | {"prompt": "Hello"}


def _curl(url: str, example: tuple[str, str], api_key: bool) -> str:
    """A command for a request.

    Args:
        example: path and contents.
    """
    path, contents = example
    key = " -H 'Authorization: Bearer '$QUIRE_API_KEY" if api_key else ""
    place = f"--unix-socket {shlex.quote(file)} http://{HOST}" if (file := socket_path(url)) else url
    return f"curl {place}/{path}{key} {contents}"
