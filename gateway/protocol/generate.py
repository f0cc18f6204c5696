"""`/inference/v1/generate`, and the routes that turn other requests into its own and its answers into theirs."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.protocol.chat import ChatCompletionChunk, ChatCompletionRequest
from gateway.protocol.common import PromptLogprobs, SamplingFields, StreamOptions, Usage
from gateway.protocol.completions import Completion, CompletionRequest
from gateway.protocol.fields import Flag, RequestFields, Whole


class GenerateSampling(SamplingFields, kw_only=True):
    """`sampling_params` of a request."""

    logprobs: int | None = None
    detokenize: Flag = True
    extra_args: dict[str, Any] | None = None  # vllm_xargs


class GenerateRequest(RequestFields, kw_only=True):
    """Token ids to go on from."""

    token_ids: list[int]
    sampling_params: GenerateSampling
    request_id: str | None = None
    model: str | None = None
    reasoning_ended: bool | None = None  # None: the prompt's end says whether the model is still to think
    return_token_ids: bool | None = None  # tells the prompt's again
    output_mode: Literal["tokens", "text"] = "tokens"
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: Whole = 0

    # Refused, unless they ask for nothing.
    kv_transfer_params: Any = None
    ec_transfer_params: Any = None
    features: Any = None
    content_parts: Any = None


class RenderedRequest(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A GenerateRequest as it is told: what it leaves open is left out."""

    token_ids: list[int]
    sampling_params: dict[str, Any]
    request_id: str | None = None
    model: str | None = None
    reasoning_ended: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: int = 0


class TokenLogprob(msgspec.Struct):
    """One token at one position."""

    token_id: int
    logprob: float
    rank: int | None = None


class GeneratedLogprob(msgspec.Struct):
    """The token at one position, and the tokens that it was chosen of."""

    token_id: int
    logprob: float
    rank: int | None = None
    top_logprobs: list[TokenLogprob] = []


class GenerateLogprobs(msgspec.Struct):
    """Log-probabilities of a choice or a chunk."""

    content: list[GeneratedLogprob] | None = None


class GenerateChoice(msgspec.Struct, kw_only=True):
    """One of the n outputs, or what a chunk adds to it."""

    index: int
    token_ids: list[int] | UnsetType | None = UNSET
    text: str | UnsetType = UNSET
    logprobs: Any = None  # GenerateLogprobs, or ChatLogprobs beside text: msgspec tells no such structs apart
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET


class GenerateChunk(msgspec.Struct, kw_only=True):
    """A chunk of a stream."""

    request_id: str
    choices: list[GenerateChoice]
    output_mode: str
    usage: Usage | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class GenerateResponse(msgspec.Struct, kw_only=True):
    """The outputs as a whole."""

    request_id: str
    choices: list[GenerateChoice]
    output_mode: str
    model: str
    created: int
    usage: Usage
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None


class GeneratedTokens(msgspec.Struct, kw_only=True):
    """An output in token ids, or a chunk's part of one."""

    index: int
    token_ids: list[int] | None = None
    logprobs: GenerateLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None


class GeneratedResponse(msgspec.Struct, kw_only=True):
    """What `/inference/v1/generate` has answered, in token ids, as it is sent on."""

    choices: list[GeneratedTokens]
    request_id: str | None = None
    output_mode: Literal["tokens"] = "tokens"
    usage: Usage | None = None
    prompt_token_ids: list[int] | None = None


class StreamState(msgspec.Struct, kw_only=True):
    """How far one output's stream has come: what a client hands from each call to the next."""

    token_ids: list[int] = []
    text_offset: int = 0  # of the next token's log-probabilities


class _DerenderFields(RequestFields, kw_only=True):
    """Of all routes that turn token ids into answers."""

    stream: Flag = False
    model: str | None = None
    generate_chunk: GeneratedResponse | None = None  # with stream
    stream_state: StreamState | None = None  # with stream, but for the first chunk


class DerenderChatRequest(_DerenderFields, kw_only=True):
    """Outputs to show as a chat completion, or a chunk of one to show as a chunk."""

    generate_response: GeneratedResponse | None = None  # without stream
    prompt_tokens: int | None = None
    prompt_token_ids: list[int] | None = None
    chat_request: ChatCompletionRequest | None = None


class DerenderCompletionRequest(_DerenderFields, kw_only=True):
    """The same of completions, whose prompts have a response each."""

    generate_responses: list[GeneratedResponse] | None = None  # without stream
    prompt_tokens: int | list[int] | None = None
    prompt_token_ids: list[int | list[int] | None] | None = None
    completion_request: CompletionRequest | None = None


class DerenderChatStreamResponse(msgspec.Struct):
    """A chunk, and what the next call needs."""

    chunk: ChatCompletionChunk
    stream_state: StreamState


class DerenderCompletionStreamResponse(msgspec.Struct):
    """A chunk, and what the next call needs."""

    chunk: Completion
    stream_state: StreamState
