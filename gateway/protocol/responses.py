"""`/v1/responses`: the request and the response. Stream events are in response_events.py."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.protocol.common import ConversationFields, KvTransferParams

ResponseStatus = Literal["in_progress", "completed", "incomplete", "failed", "cancelled"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]


class CustomToolFormat(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a custom tool takes: any text, or one that follows a grammar."""

    type: Literal["text", "grammar"]
    syntax: str | None = None
    definition: str | None = None


class ResponsesTool(msgspec.Struct, kw_only=True):
    """A tool that the client runs: a function, a custom tool, or a namespace of both. Other types are OpenAI's own."""

    type: str
    name: str | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    format: CustomToolFormat | UnsetType | None = UNSET  # of a custom tool
    tools: list[ResponsesTool] | UnsetType | None = UNSET  # of a namespace


class ResponsesFormat(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The format that the text of the answer must have."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema: msgspec.Raw | UnsetType = UNSET
    strict: bool | None = None


class ResponsesText(msgspec.Struct, kw_only=True):
    """Options for the text of the answer."""

    format: ResponsesFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ResponsesReasoning(msgspec.Struct, kw_only=True):
    """How much the model reasons. There are no summaries: the output items contain the full reasoning."""

    effort: str | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesRequest(ConversationFields, kw_only=True):
    """A turn of a conversation to answer; null means the same as absent. Sampling is as in chats."""

    input: str | list[dict[str, Any]]
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[ResponsesTool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = None  # applies to tools that servers run
    text: ResponsesText | None = None
    reasoning: ResponsesReasoning | None = None
    max_output_tokens: int | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    metadata: dict[str, str] | None = None
    background: bool | None = None
    store: bool | None = None
    safety_identifier: str | None = None
    service_tier: str | None = None

    # Not supported: refused unless neutral.
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None


class ResponseTopLogprob(msgspec.Struct):
    """Log-probability of one candidate token at one position."""

    token: str
    logprob: float
    bytes: list[int]


class ResponseLogprob(msgspec.Struct):
    """Log-probability of the token at one position, with the most likely alternatives."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[ResponseTopLogprob]


class OutputText(msgspec.Struct, tag="output_text"):
    """Text of the answer."""

    text: str
    logprobs: list[ResponseLogprob] = []
    annotations: list[None] = []  # always empty


class ReasoningText(msgspec.Struct, tag="reasoning_text"):
    """Text of the model's reasoning."""

    text: str


class OutputMessage(msgspec.Struct, tag="message"):
    """A message of the model."""

    id: str
    content: list[OutputText]
    status: ItemStatus
    role: str = "assistant"


class ReasoningItem(msgspec.Struct, tag="reasoning"):
    """The model's reasoning."""

    id: str
    content: list[ReasoningText]
    status: ItemStatus
    summary: list[None] = []  # always empty
    encrypted_content: str | None = None  # always None


class FunctionCallItem(msgspec.Struct, tag="function_call"):
    """A tool call, which the client runs."""

    id: str
    call_id: str
    name: str
    arguments: str  # JSON
    status: ItemStatus
    namespace: str | UnsetType = UNSET


class CustomToolCallItem(msgspec.Struct, tag="custom_tool_call"):
    """A call of a custom tool, which the client runs."""

    id: str
    call_id: str
    name: str
    input: str
    status: ItemStatus
    namespace: str | UnsetType = UNSET


OutputItem = OutputMessage | ReasoningItem | FunctionCallItem | CustomToolCallItem


class InputTokensDetails(msgspec.Struct):
    """Breakdown of the input tokens, if the server reports it."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct):
    """Breakdown of the output tokens."""

    reasoning_tokens: int = 0


class ResponseUsage(msgspec.Struct):
    """Token counts of a response."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens_details: OutputTokensDetails


class ResponseFailure(msgspec.Struct):
    """Why a response failed."""

    code: str
    message: str


class IncompleteDetails(msgspec.Struct):
    """Why a response is incomplete."""

    reason: str


class ResponseBody(msgspec.Struct, kw_only=True):
    """A response, complete or in progress, and the parameters of its request."""

    id: str
    created_at: int
    model: str
    status: ResponseStatus
    output: list[OutputItem] = []
    usage: ResponseUsage | None = None
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    completed_at: int | None = None
    object: str = "response"
    instructions: str | None = None
    previous_response_id: str | None = None
    tools: list[ResponsesTool] = []
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    max_tool_calls: int | None = None
    text: ResponsesText
    reasoning: ResponsesReasoning
    max_output_tokens: int | None = None
    temperature: float
    top_p: float
    top_logprobs: int = 0
    truncation: str = "disabled"
    metadata: dict[str, str] = {}
    background: bool = False
    store: bool = False  # whether this server stores it
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    service_tier: str = "default"
    kv_transfer_params: KvTransferParams | UnsetType | None = UNSET


class InputItems(msgspec.Struct):
    """A page of the input items of a response."""

    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class InputTokens(msgspec.Struct):
    """Number of tokens of a turn's input, with the conversation before it, as rendered for the model."""

    input_tokens: int
    object: str = "response.input_tokens"


class DeletedResponse(msgspec.Struct):
    """Confirmation that a response was deleted."""

    id: str
    object: str = "response"
    deleted: bool = True
