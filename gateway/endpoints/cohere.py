"""`POST /v2/embed`: embeddings in Cohere's format."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.pooled import Pooled
from gateway.endpoints import large
from gateway.endpoints.body import read_json
from gateway.endpoints.embeddings import check_dimensions
from gateway.endpoints.pooled import PoolingCall
from gateway.protocol.pooling import (
    CohereBilledUnits,
    CohereEmbeddings,
    CohereEmbedRequest,
    CohereEmbedResponse,
    CohereMeta,
    PoolingFields,
)
from gateway.requests.pooling_request import Truncation
from quire.errors import InvalidRequest

# Cohere's input types → prompt names in models' configurations.
_INPUT_TYPES = MappingProxyType(
    {
        "search_query": ("query",), "search_document": ("document", "passage", "corpus"),
        "classification": ("classification",), "clustering": ("clustering",),
    }
)  # fmt: skip


async def embed(request: Request) -> Response:
    """Embeds each text, in each requested type."""
    body = await read_json(request, CohereEmbedRequest)
    call = PoolingCall.of(request, PoolingFields(model=body.model, priority=body.priority))
    call.require("embed")
    texts = _texts_of(body)
    call.check_inputs(len(texts), "texts")
    kinds = body.embedding_types or ["float"]
    size = call.info.embedding_size
    if body.output_dimension is not None:
        check_dimensions(call, body.output_dimension, "output_dimension")
        size = body.output_dimension
    if size % 8 and {"binary", "ubinary"} & set(kinds):
        raise InvalidRequest(
            f"embedding_types: vectors of {size} values cannot be packed as bits into whole bytes; ask for float or "
            "base64.",
            parameter="embedding_types",
        )
    prompt = _prompt_of(call, body.input_type)
    inputs = await call.texts([prompt + text for text in texts], truncation=_truncation_of(call, body))
    outputs = await call.run(inputs, "embed", dimensions=body.output_dimension, normalize=None)
    meta = CohereMeta(CohereBilledUnits(sum(output.num_tokens for output in outputs)))
    return await large.answer(
        request, size * len(outputs),
        lambda: CohereEmbedResponse(call.request_id, _embeddings(kinds, outputs), texts, meta),
    )  # fmt: skip


def _embeddings(kinds: Sequence[str], outputs: Sequence[Pooled]) -> CohereEmbeddings:
    from gateway.answers import vectors  # late: it needs numpy, a tenth of a gateway's start

    found = CohereEmbeddings()
    if "float" in kinds:
        found.floats = [vectors.rows_of(output).tolist() for output in outputs]
    if "base64" in kinds:
        found.base64 = [vectors.in_base64(output) for output in outputs]
    if "binary" in kinds:
        found.binary = vectors.packed_signs(outputs, signed=True)
    if "ubinary" in kinds:
        found.ubinary = vectors.packed_signs(outputs, signed=False)
    return found


def _texts_of(body: CohereEmbedRequest) -> list[str]:
    if body.images:
        raise InvalidRequest("images: Quire's models read text only.", parameter="images")
    if (body.texts is None) == (body.inputs is None):
        raise InvalidRequest("Send either texts or inputs.", parameter="texts")
    if body.texts is not None:
        return body.texts
    return ["".join(part.text for part in each.content) for each in body.inputs or ()]


def _prompt_of(call: PoolingCall, input_type: str | None) -> str:
    """Returns the text to prepend for this input type; empty for models without prompts."""
    prompts = call.info.prompts
    if input_type is None:
        return prompts.get(call.info.default_prompt_name, "")
    names = (input_type, *_INPUT_TYPES.get(input_type, ()))
    found = next((prompts[name] for name in names if name in prompts), None)
    if found is None and input_type not in _INPUT_TYPES:
        known = ", ".join(dict.fromkeys((*_INPUT_TYPES, *prompts)))
        raise InvalidRequest(f"input_type is {input_type[:100]!r}; it must be one of {known}.", parameter="input_type")
    return found or ""


def _truncation_of(call: PoolingCall, body: CohereEmbedRequest) -> Truncation | None:
    """
    Raises:
        InvalidRequest: max_tokens is not positive.
    """
    most = call.model.max_model_len
    if body.max_tokens is not None:
        if body.max_tokens < 1:
            raise InvalidRequest(f"max_tokens is {body.max_tokens}; it must be positive.", parameter="max_tokens")
        most = min(most, body.max_tokens)
    elif body.truncate == "NONE":
        return None
    return Truncation(most, keeps_end=body.truncate == "START")
