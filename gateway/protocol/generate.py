"""`/inference/v1/generate`, and the routes that convert other requests to its format and its responses back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.protocol.chat import ChatCompletionChunk, ChatCompletionRequest
from gateway.protocol.common import KvTransferParams, PromptLogprobs, SamplingFields, StreamOptions, Usage, WeightSpan
from gateway.protocol.completions import Completion, CompletionRequest
from gateway.protocol.fields import Flag, RequestFields, Whole


class GenerateSampling(SamplingFields, kw_only=True):
    """The `sampling_params` of a request."""

    logprobs: int | None = None
    detokenize: Flag = True
    extra_args: dict[str, Any] | None = None  # same as vllm_xargs


class GenerateRequest(RequestFields, kw_only=True):
    """A prompt of token ids to continue."""

    token_ids: list[int]
    sampling_params: GenerateSampling
    request_id: str | None = None
    model: str | None = None
    reasoning_ended: bool | None = None  # None: inferred from the end of the prompt
    return_token_ids: bool | None = None  # also returns those of the prompt
    output_mode: Literal["tokens", "text"] = "tokens"
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: Whole = 0
    token_offsets: Any = None  # what rendering returned beside the ids, which are all that is needed
    kv_transfer_params: KvTransferParams | None = None

    # Not supported: refused unless neutral.
    ec_transfer_params: Any = None
    features: Any = None
    content_parts: Any = None


class RenderedRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A GenerateRequest as returned by the render routes: fields with default values are omitted."""

    token_ids: list[int]
    sampling_params: dict[str, Any]
    # Where each token begins and ends, in characters of the text; None unless they are wanted and come from a text.
    token_offsets: list[tuple[int, int]] | None = None
    request_id: str | None = None
    model: str | None = None
    reasoning_ended: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: int = 0
    kv_transfer_params: KvTransferParams | None = None


class TokenLogprob(msgspec.Struct):
    """Log-probability of one candidate token at one position."""

    token_id: int
    logprob: float
    rank: int | None = None


class GeneratedLogprob(msgspec.Struct):
    """Log-probability of the token at one position, and the most likely candidates."""

    token_id: int
    logprob: float
    rank: int | None = None
    top_logprobs: list[TokenLogprob] = []


class GenerateLogprobs(msgspec.Struct):
    """Log-probabilities of a choice or a chunk."""

    content: list[GeneratedLogprob] | None = None


class GenerateChoice(msgspec.Struct, kw_only=True):
    """One of the n outputs, or the part that a chunk adds to it."""

    index: int
    token_ids: list[int] | UnsetType | None = UNSET
    text: str | UnsetType = UNSET
    logprobs: Any = None  # GenerateLogprobs, or ChatLogprobs with text: msgspec has no untagged unions of structs
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    routed_experts: str | UnsetType | None = UNSET
    sampling_mask: Sequence[Sequence[int]] | UnsetType = UNSET
    weight_versions: Sequence[WeightSpan] | UnsetType = UNSET


class GenerateChunk(msgspec.Struct, kw_only=True):
    """A chunk of a stream."""

    request_id: str
    choices: list[GenerateChoice]
    output_mode: str
    usage: Usage | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    kv_transfer_params: KvTransferParams | UnsetType | None = UNSET


class GenerateResponse(msgspec.Struct, kw_only=True):
    """The complete response."""

    request_id: str
    choices: list[GenerateChoice]
    output_mode: str
    model: str
    created: int
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    kv_transfer_params: KvTransferParams | UnsetType | None = UNSET


class GeneratedTokens(msgspec.Struct, kw_only=True):
    """Token ids of an output, or the part of one that a chunk has."""

    index: int
    token_ids: list[int] | None = None
    logprobs: GenerateLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class GeneratedResponse(msgspec.Struct, kw_only=True):
    """A response of `/inference/v1/generate` in token ids, as clients pass it to the derender routes."""

    choices: list[GeneratedTokens]
    request_id: str | None = None
    output_mode: Literal["tokens"] = "tokens"
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None


class StreamState(msgspec.Struct, kw_only=True):
    """Progress of one output's stream; the client passes it from each call to the next."""

    token_ids: list[int] = []
    text_offset: int = 0  # of the next token, for its logprobs


class _DerenderFields(RequestFields, kw_only=True):
    """Fields of all routes that turn token ids into responses."""

    stream: Flag = False
    model: str | None = None
    generate_chunk: GeneratedResponse | None = None  # with stream
    stream_state: StreamState | None = None  # with stream, except for the first chunk


class DerenderChatRequest(_DerenderFields, kw_only=True):
    """Outputs to convert into a chat completion, or one chunk to convert into a chat completion chunk."""

    generate_response: GeneratedResponse | None = None  # without stream
    prompt_tokens: int | None = None
    prompt_token_ids: list[int] | None = None
    chat_request: ChatCompletionRequest | None = None


class DerenderCompletionRequest(_DerenderFields, kw_only=True):
    """Outputs to convert into a completion, one response per prompt, or one chunk to convert into a chunk."""

    generate_responses: list[GeneratedResponse] | None = None  # without stream
    prompt_tokens: int | list[int] | None = None
    prompt_token_ids: list[int | list[int] | None] | None = None
    completion_request: CompletionRequest | None = None


class DerenderChatStreamResponse(msgspec.Struct):
    """A chunk, and the state to pass with the next call."""

    chunk: ChatCompletionChunk
    stream_state: StreamState


class DerenderCompletionStreamResponse(msgspec.Struct):
    """A chunk, and the state to pass with the next call."""

    chunk: Completion
    stream_state: StreamState
