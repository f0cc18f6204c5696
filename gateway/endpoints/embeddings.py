"""`POST /v1/embeddings`, `/pooling` and `/classify`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.pooled import Pooled
from gateway.endpoints import large
from gateway.endpoints.body import read_json
from gateway.endpoints.pooled import PoolingCall, now, usage_of
from gateway.endpoints.pooled_inputs import inputs_of
from gateway.errors import json_bytes
from gateway.protocol.pooling import (
    BytesItem,
    BytesMetadata,
    Classification,
    ClassifyRequest,
    ClassifyResponse,
    Embedding,
    EmbeddingRequest,
    EmbeddingResponse,
    PoolingData,
    PoolingRequest,
    PoolingResponse,
    VectorFields,
)
from quire.errors import InvalidRequest

_MOST_NUMBERS = 2**23  # in a JSON answer, about twenty bytes each

Value = list[float] | list[list[float]] | str


async def embeddings(request: Request) -> Response:
    """Embeds each input."""
    return await embed(request, await read_json(request, EmbeddingRequest))


async def embed(request: Request, body: EmbeddingRequest) -> Response:
    """Embeds the inputs of a body."""
    call = PoolingCall.of(request, body)
    call.require("embed")
    prompt = prompt_of(call, body.prompt_name)
    parameters = _vector_parameters(call, body, "embed")
    outputs = await call.run(await inputs_of(call, body, prompt), "embed", **parameters)

    def make(values: Sequence[Any]) -> EmbeddingResponse:
        data = [Embedding(index, value) for index, value in enumerate(values)]
        return EmbeddingResponse(f"embd-{call.request_id}", now(), call.model_name, data, usage_of(outputs))

    return await _written(call, body, outputs, "embd", make)


async def pooling(request: Request) -> Response:
    """Returns the model's raw output for each input."""
    return await pool(request, await read_json(request, PoolingRequest))


async def pool(request: Request, body: PoolingRequest) -> Response:
    """Returns the raw outputs for the inputs of a body."""
    if body.data is not None:
        raise InvalidRequest(
            "data is meant for plugins, which Quire does not have; send input or messages.", parameter="data"
        )
    call = PoolingCall.of(request, body)
    task = body.task or call.info.tasks[0]
    call.require(task)
    parameters = _vector_parameters(call, body, task)
    outputs = await call.run(await inputs_of(call, body), task, **parameters)

    def make(values: Sequence[Any]) -> PoolingResponse:
        data = [PoolingData(index, value) for index, value in enumerate(values)]
        return PoolingResponse(f"pool-{call.request_id}", now(), call.model_name, data, usage_of(outputs))

    return await _written(call, body, outputs, "pool", make)


async def classify(request: Request) -> Response:
    """Classifies each input."""
    return await classified(request, await read_json(request, ClassifyRequest))


async def classified(request: Request, body: ClassifyRequest) -> Response:
    """Classifies the inputs of a body."""
    call = PoolingCall.of(request, body)
    call.require("classify")
    outputs = await call.run(await inputs_of(call, body), "classify")

    def make() -> ClassifyResponse:
        data = [_classification(call, index, output) for index, output in enumerate(outputs)]
        return ClassifyResponse(f"classify-{call.request_id}", now(), call.model_name, data, usage_of(outputs))

    return await large.answer(request, sum(map(_num_values, outputs)), make)


def _classification(call: PoolingCall, index: int, output: Pooled) -> Classification:
    from gateway.answers import vectors  # late: it needs numpy, a third of a gateway's start

    values: list[Any] = vectors.lists_of(output)
    best, names = max(range(len(values)), key=values.__getitem__), call.info.label_names
    return Classification(index, names[best] if best < len(names) else None, values, len(values))


def prompt_of(call: PoolingCall, name: str | None) -> str:
    """Returns the text to prepend to each input.

    Raises:
        InvalidRequest: the model has no prompt of that name.
    """
    prompts = call.info.prompts
    if name and name not in prompts:
        known = ", ".join(sorted(prompts)) or "none"
        raise InvalidRequest(f"prompt_name is {name[:100]!r}; the model's prompts: {known}.", parameter="prompt_name")
    return prompts.get(name or call.info.default_prompt_name, "")


def _vector_parameters(call: PoolingCall, body: VectorFields, task: str) -> dict[str, Any]:
    """
    Raises:
        InvalidRequest: a parameter does not apply to the task, or the model does not support it.
    """
    if body.dimensions is not None:
        check_dimensions(call, body.dimensions, "dimensions", task)
    wanted = body.use_activation if body.use_activation is not None else body.normalize
    if task.endswith("classify"):
        return {"use_activation": wanted}
    return {"dimensions": body.dimensions, "normalize": wanted, "use_activation": None}


def check_dimensions(call: PoolingCall, dimensions: int, parameter: str, task: str = "embed") -> None:
    """
    Raises:
        InvalidRequest: the model's vectors cannot be truncated to that size.
    """
    info = call.info
    if task == "embed" and not info.is_matryoshka and dimensions == info.embedding_size:
        return  # clients that create a table of vectors name the size that they have anyway
    if task != "embed" or not info.is_matryoshka:
        raise InvalidRequest(
            f"{parameter}: the model {call.model.main_name!r} is not trained for shorter vectors (Matryoshka); leave "
            "it out.",
            parameter=parameter,
        )
    allowed = info.matryoshka_dimensions
    if dimensions not in (allowed or range(1, info.embedding_size + 1)):
        named = ", ".join(map(str, allowed)) if allowed else f"1 to {info.embedding_size}"
        raise InvalidRequest(f"{parameter} is {dimensions}; the model supports {named}.", parameter=parameter)


async def _written(
    call: PoolingCall,
    body: VectorFields,
    outputs: Sequence[Pooled],
    kind: str,
    make: Callable[[Sequence[Value]], Any],
) -> Response:
    """Writes the answer in the requested encoding.

    Args:
        kind: prefix of the answer's id.
        make: builds the JSON answer from each input's value.
    """
    dtype, endianness = body.embed_dtype or "float32", body.endianness or "native"
    if body.encoding_format in ("bytes", "bytes_only"):
        return await _in_bytes(call, body, outputs, kind)

    def whole() -> Any:
        from gateway.answers import vectors  # late: it needs numpy, a third of a gateway's start

        if body.encoding_format == "base64":
            return make([vectors.in_base64(output, dtype, endianness) for output in outputs])
        return make([vectors.lists_of(output) for output in outputs])

    size = sum(map(_num_values, outputs))
    if size > _MOST_NUMBERS and body.encoding_format != "base64":
        raise InvalidRequest(
            f"The JSON answer would have {size} numbers; at most {_MOST_NUMBERS} are allowed: set encoding_format to "
            "base64 or bytes.",
            parameter="encoding_format",
        )
    return await large.answer(call.request, size // (8 if body.encoding_format == "base64" else 1), whole)


async def _in_bytes(call: PoolingCall, body: VectorFields, outputs: Sequence[Pooled], kind: str) -> Response:
    """Writes all values in one binary body; with `bytes`, a header describes which are which."""
    from gateway.answers import vectors  # late: it needs numpy, a third of a gateway's start

    dtype, endianness = body.embed_dtype or "float32", body.endianness or "native"
    parts = [vectors.encoded(output, dtype, endianness) for output in outputs]
    headers = {}
    if body.encoding_format == "bytes":
        ends = list(itertools.accumulate(map(len, parts)))
        items = [
            BytesItem(index, dtype, endianness, end - len(part), end, list(output.shape))
            for index, (part, output, end) in enumerate(zip(parts, outputs, ends, strict=True))
        ]
        told = BytesMetadata(f"{kind}-{call.request_id}", now(), call.model_name, items, usage_of(outputs))
        headers["metadata"] = json_bytes(told).decode("ascii", "backslashreplace")
    return Response(b"".join(parts), headers=headers, media_type="application/octet-stream")


def _num_values(output: Pooled) -> int:
    return len(output.data) // 4
