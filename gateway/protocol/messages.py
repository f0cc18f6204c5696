"""`/v1/messages`: Anthropic's API."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.protocol.common import ConversationFields, KvTransferParams


class MessagesTool(msgspec.Struct, kw_only=True):
    """A tool that the client runs."""

    name: str = ""
    description: str | None = None
    input_schema: dict[str, Any] | None = None  # required for custom tools
    type: str | None = None  # "custom"; others are built-in tools of Anthropic's models
    strict: bool | None = None
    cache_control: Any = None


class MessagesToolChoice(msgspec.Struct, kw_only=True):
    """Whether the model calls a tool, and which."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesThinking(msgspec.Struct, kw_only=True):
    """Whether the model thinks before it answers, and the token budget for it."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: int | None = None
    display: Literal["summarized", "omitted"] | None = None


class MessagesFormat(msgspec.Struct, kw_only=True):
    """The JSON schema that the text of the answer must follow."""

    type: Literal["json_schema"]
    schema: msgspec.Raw


class MessagesOutput(msgspec.Struct, kw_only=True):
    """Output options."""

    format: MessagesFormat | None = None
    effort: str | None = None


class MessagesMetadata(msgspec.Struct, kw_only=True):
    """Metadata about the caller."""

    user_id: str | None = None


class CountTokensRequest(ConversationFields, kw_only=True):
    """A conversation whose tokens to count. Sampling is as in chats; null means the same as absent.

    `cache_control` has no effect: the prefix cache finds shared prefixes without it.
    """

    messages: list[dict[str, Any]]
    system: str | list[dict[str, Any]] | None = None
    tools: list[MessagesTool] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: MessagesThinking | None = None
    output_config: MessagesOutput | None = None
    cache_control: Any = None

    # Not supported: refused unless empty.
    mcp_servers: Any = None
    container: Any = None


class MessagesRequest(CountTokensRequest, kw_only=True):
    """A conversation to continue."""

    max_tokens: int
    stop_sequences: list[str] | None = None
    metadata: MessagesMetadata | None = None
    service_tier: str | None = None


class CountTokensResponse(msgspec.Struct):
    """Number of tokens of a conversation, as rendered for the model."""

    input_tokens: int


class MessagesUsage(msgspec.Struct):
    """Token counts of a request. Cached prompt tokens are counted separately if the server reports them."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class TextBlock(msgspec.Struct, tag="text"):
    """Text of the answer."""

    text: str


class ThinkingBlock(msgspec.Struct, tag="thinking"):
    """The model's reasoning. The signature is always empty."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag="tool_use"):
    """A tool call."""

    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessagesAnswerBody(msgspec.Struct, tag="message"):
    """A complete answer; a stream starts with an empty one."""

    id: str
    model: str
    content: list[AnswerBlock]
    usage: MessagesUsage
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    role: str = "assistant"
    kv_transfer_params: KvTransferParams | UnsetType | None = UNSET


class MessageStart(msgspec.Struct, tag="message_start"):
    message: MessagesAnswerBody


class BlockStart(msgspec.Struct, tag="content_block_start"):
    index: int
    content_block: AnswerBlock


class TextDelta(msgspec.Struct, tag="text_delta"):
    text: str


class ThinkingDelta(msgspec.Struct, tag="thinking_delta"):
    thinking: str


class SignatureDelta(msgspec.Struct, tag="signature_delta"):
    signature: str = ""


class InputDelta(msgspec.Struct, tag="input_json_delta"):
    partial_json: str


class BlockDelta(msgspec.Struct, tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(msgspec.Struct, tag="content_block_stop"):
    index: int


class StopDelta(msgspec.Struct):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, tag="message_delta"):
    delta: StopDelta
    usage: MessagesUsage
    kv_transfer_params: KvTransferParams | UnsetType | None = UNSET


class MessageStop(msgspec.Struct, tag="message_stop"):
    """End of the stream."""


MessagesEvent = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
