"""`/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from gateway.protocol.common import ConversationFields, KvTransferParams, PromptLogprobs, Usage, WeightSpan
from gateway.protocol.fields import Flag


class ChatFields(ConversationFields, kw_only=True):
    """Parameters for continuing conversations."""

    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    add_generation_prompt: Flag = True
    continue_final_message: Flag = False
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None


class ChatCompletionRequest(ChatFields, kw_only=True):
    """A conversation to continue."""

    messages: list[dict[str, Any]]


class ChatBatchRequest(ChatFields, kw_only=True):
    """Several conversations to continue with the same parameters."""

    messages: list[list[dict[str, Any]]]


class TopLogprob(msgspec.Struct):
    """Log-probability of one candidate token at one position."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatTokenLogprob(msgspec.Struct):
    """Log-probability of the token at one position, with the most likely alternatives."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    """Log-probabilities of a choice or a chunk."""

    content: list[ChatTokenLogprob]


class FunctionCall(msgspec.Struct):
    """Name and arguments of a called function; in streams, only the first piece has the name."""

    arguments: str
    name: str | UnsetType = UNSET


class ChatToolCall(msgspec.Struct):
    """A tool call."""

    id: str
    function: FunctionCall
    type: str = "function"


class ChatToolCallPiece(msgspec.Struct):
    """The part of a tool call that a chunk adds."""

    index: int
    function: FunctionCall
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class ChatMessage(msgspec.Struct):
    """A complete answer."""

    role: str
    content: str | None
    refusal: str | None = None
    reasoning: str | None = None
    tool_calls: list[ChatToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    """One of the n answers."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: list[int] | None = None
    routed_experts: str | UnsetType | None = UNSET
    weight_versions: Sequence[WeightSpan] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct):
    """The complete response."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None = None
    prompt_logprobs: PromptLogprobs | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | UnsetType = UNSET
    kv_transfer_params: KvTransferParams | UnsetType | None = UNSET


class ChatDelta(msgspec.Struct):
    """The part of an answer that a chunk adds."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    tool_calls: list[ChatToolCallPiece] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    """The part that a chunk adds to one of the n answers."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET
    weight_versions: Sequence[WeightSpan] | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct):
    """A chunk of a stream."""

    id: str
    object: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType = UNSET
    system_fingerprint: str | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    kv_transfer_params: KvTransferParams | UnsetType | None = UNSET
