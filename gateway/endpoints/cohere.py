"""`POST /v2/embed` and `/v1/embed`: embeddings in Cohere's format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.answers.pooled import Pooled
from gateway.endpoints import large
from gateway.endpoints.body import read_json
from gateway.endpoints.embeddings import check_dimensions
from gateway.endpoints.pooled import PoolingCall
from gateway.endpoints.pooled_inputs import rendered
from gateway.protocol.pooling import (
    CohereApiVersion,
    CohereBilledUnits,
    CohereEmbeddings,
    CohereEmbedRequest,
    CohereEmbedResponse,
    CohereFloatsResponse,
    CohereInput,
    CohereMeta,
    PoolingFields,
)
from gateway.requests.field_names import told_as
from gateway.requests.messages import PlacedPart, media_kinds, texts_of
from gateway.requests.pooling_request import Truncation
from gateway.services.tokenizer import ConversationForm
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
    return await _embed(request, await read_json(request, CohereEmbedRequest), "2")


async def embed_v1(request: Request) -> Response:
    """The same for version 1, which answers with bare vectors if no types are requested."""
    return await _embed(request, await read_json(request, CohereEmbedRequest), "1")


async def _embed(request: Request, body: CohereEmbedRequest, version: str) -> Response:
    call = PoolingCall.of(request, PoolingFields(model=body.model, priority=body.priority))
    call.require("embed")
    given = _inputs_of(body)
    call.check_inputs(len(given), "texts")
    texts = [each for each in given if isinstance(each, str)]
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
    tokenized = iter(await call.texts([prompt + text for text in texts], truncation=_truncation_of(call, body)))
    system: list[Mapping[str, Any]] = [{"role": "system", "content": prompt}] if prompt else []
    conversations = [[*system, {"role": "user", "content": each}] for each in given if not isinstance(each, str)]
    with told_as({"messages": "images" if body.images else "inputs"}):
        seen = iter(await rendered(call, conversations, ConversationForm.CHAT))
    inputs = [next(tokenized if isinstance(each, str) else seen) for each in given]
    outputs = await call.run(inputs, "embed", dimensions=body.output_dimension, normalize=None)
    billed = CohereBilledUnits(sum(output.num_tokens for output in outputs))
    meta = CohereMeta(billed, CohereApiVersion(version))

    def make() -> CohereEmbedResponse | CohereFloatsResponse:
        found = _embeddings(kinds, outputs)
        if version == "1" and not body.embedding_types:
            return CohereFloatsResponse(call.request_id, found.floats or [], texts, meta)
        return CohereEmbedResponse(call.request_id, found, texts, meta)

    return await large.answer(request, size * len(outputs), make)


def _embeddings(kinds: Sequence[str], outputs: Sequence[Pooled]) -> CohereEmbeddings:
    from gateway.answers import vectors  # late: it needs numpy, a third of a gateway's start

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


def _inputs_of(body: CohereEmbedRequest) -> list[str | list[PlacedPart]]:
    """The inputs: texts, and the content of messages that have images.

    Raises:
        InvalidRequest: there are none, several kinds, or one is malformed.
    """
    if (body.texts is not None) + (body.inputs is not None) + bool(body.images) != 1:
        raise InvalidRequest("Send either texts, images or inputs.", parameter="texts")
    if body.texts is not None:
        return [*body.texts]
    if body.images:
        return [
            [PlacedPart(f"images[{index}]", type="image_url", image_url={"url": url})]
            for index, url in enumerate(body.images)
        ]
    return [_content_of(each, f"inputs[{index}]") for index, each in enumerate(body.inputs or ())]


def _content_of(given: CohereInput, place: str) -> str | list[PlacedPart]:
    content = [
        PlacedPart(f"{place}.content[{index}]", type=part.type, **{part.type: getattr(part, part.type)})
        for index, part in enumerate(given.content)
    ]
    if media_kinds([{"content": content}]):
        return content
    with told_as({"messages": "inputs"}):
        return "".join(texts_of({"content": content}))


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
