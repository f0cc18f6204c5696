"""`/v1/embeddings`, `/pooling` and `/classify`; Cohere's `/v2/embed` and `/v1/embed`."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.protocol.common import Usage
from gateway.protocol.fields import Flag, RequestFields, Whole

PoolingTask = Literal["embed", "classify", "token_embed", "token_classify"]


class PoolingFields(RequestFields, kw_only=True):
    """Fields of all requests of pooling models; null means the same as absent."""

    model: str | None = None
    user: str | None = None
    request_id: str | None = None
    priority: Whole = 0
    truncate_prompt_tokens: int | None = None  # -1: the model's maximum
    truncation_side: Literal["left", "right"] | None = None  # default: the tokenizer's
    use_activation: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_salt: str | None = None  # no effect: pooling requests use no cache

    # For images, videos and audio; refused without any, and unless the server allows them.
    mm_processor_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, Any] | None = None
    padding: str | None = None  # not supported: refused unless neutral


class InputFields(PoolingFields, kw_only=True):
    """The inputs: texts, token ids, or conversations to render by the chat template."""

    input: str | list[str | int | list[int]] | None = None
    messages: list[dict[str, Any] | list[dict[str, Any]]] | None = None
    add_special_tokens: bool | None = None  # default: true for input, false for messages
    add_generation_prompt: Flag = False
    continue_final_message: Flag = False


class VectorFields(InputFields, kw_only=True):
    """Encoding of the returned vectors."""

    encoding_format: Literal["float", "base64", "bytes", "bytes_only"] | None = None  # default: float
    embed_dtype: Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"] | None = None  # default: float32
    endianness: Literal["native", "little", "big"] | None = None  # default: native
    dimensions: int | None = None
    normalize: bool | None = None  # older name of use_activation


class EmbeddingRequest(VectorFields, kw_only=True):
    """Inputs to compute one embedding each for."""

    prompt_name: str | None = None  # one of the model's prompts, prepended to each text


class Embedding(msgspec.Struct):
    """One embedding."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingResponse(msgspec.Struct):
    """The embeddings of all inputs."""

    id: str
    created: int
    model: str
    data: list[Embedding]
    usage: Usage
    object: str = "list"


class PoolingRequest(VectorFields, kw_only=True):
    """Inputs to get the pooling model's raw outputs for."""

    task: PoolingTask | None = None  # default: the model's first task
    data: Any = None


class PoolingData(msgspec.Struct):
    """Output for one input: one row, or one row per token."""

    index: int
    data: list[float | list[float]] | str
    object: str = "pooling"


class PoolingResponse(msgspec.Struct):
    """The outputs for all inputs."""

    id: str
    created: int
    model: str
    data: list[PoolingData]
    usage: Usage
    object: str = "list"


class BytesItem(msgspec.Struct):
    """Position and format of one vector in a binary body."""

    index: int
    embed_dtype: str
    endianness: str
    start: int
    end: int
    shape: list[int]


class BytesMetadata(msgspec.Struct):
    """Description of a binary body, sent in its header `metadata`."""

    id: str
    created: int
    model: str
    data: list[BytesItem]
    usage: Usage


class ClassifyRequest(InputFields, kw_only=True):
    """Inputs to classify."""


class Classification(msgspec.Struct):
    """Classification of one input."""

    index: int
    label: str | None
    probs: list[float]
    num_classes: int


class ClassifyResponse(msgspec.Struct):
    """The classifications of all inputs."""

    id: str
    created: int
    model: str
    data: list[Classification]
    usage: Usage
    object: str = "list"


class CohereContent(msgspec.Struct):
    """One part of an input: a text, or the URL of an image."""

    type: Literal["text", "image_url"]
    text: str | None = None
    image_url: dict[str, Any] | None = None


class CohereInput(msgspec.Struct):
    """An input made of several parts."""

    content: list[CohereContent]


class CohereEmbedRequest(RequestFields, kw_only=True):
    """Request for embeddings in Cohere's format."""

    model: str | None = None
    input_type: str | None = None
    texts: list[str] | None = None
    inputs: list[CohereInput] | None = None
    images: list[str] | None = None  # data: URLs
    output_dimension: int | None = None
    embedding_types: list[Literal["float", "base64", "binary", "ubinary"]] | None = None  # default: float
    truncate: Literal["NONE", "START", "END"] | None = None  # default: END
    max_tokens: int | None = None
    priority: Whole = 0


class CohereApiVersion(msgspec.Struct):
    """Version of Cohere's API."""

    version: str = "2"


class CohereBilledUnits(msgspec.Struct):
    """Number of tokens processed."""

    input_tokens: int


class CohereMeta(msgspec.Struct):
    """Usage of a request."""

    billed_units: CohereBilledUnits
    api_version: CohereApiVersion = msgspec.field(default_factory=CohereApiVersion)


class CohereEmbeddings(msgspec.Struct, rename={"floats": "float"}):
    """The embeddings, in each requested type."""

    floats: list[list[float]] | UnsetType = UNSET
    base64: list[str] | UnsetType = UNSET
    binary: list[list[int]] | UnsetType = UNSET
    ubinary: list[list[int]] | UnsetType = UNSET


class CohereEmbedResponse(msgspec.Struct):
    """Response with embeddings in Cohere's format."""

    id: str
    embeddings: CohereEmbeddings
    texts: list[str]
    meta: CohereMeta
    response_type: str = "embeddings_by_type"


class CohereFloatsResponse(msgspec.Struct):
    """Response of version 1 to a request that names no types."""

    id: str
    embeddings: list[list[float]]
    texts: list[str]
    meta: CohereMeta
    response_type: str = "embeddings_floats"
