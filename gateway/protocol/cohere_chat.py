"""`/cohere/v2/chat`: version 2 of Cohere's chat API."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from gateway.protocol.fields import Flag, RequestFields, Whole


class CohereFormat(msgspec.Struct, kw_only=True):
    """The form of the answer: any text, or a JSON object, which may have to follow a schema."""

    type: Literal["text", "json_object"]
    json_schema: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class CohereThinking(msgspec.Struct, kw_only=True):
    """Whether the model thinks before it answers, and the token budget for it."""

    type: Literal["enabled", "disabled"]
    token_budget: int | None = None


class CohereCitations(msgspec.Struct, kw_only=True):
    """Whether answers cite documents, which they never do here."""

    mode: Literal["FAST", "ACCURATE", "OFF", "ENABLED", "DISABLED"] | None = None


class CohereDocument(msgspec.Struct, kw_only=True):
    """A document for the model to read."""

    data: str | dict[str, Any]
    id: str | None = None


class CohereChatRequest(RequestFields, kw_only=True):
    """A conversation to continue; null means the same as absent."""

    model: str
    messages: list[dict[str, Any]]
    stream: Flag = False
    tools: list[dict[str, Any]] | None = None
    strict_tools: Flag = False
    tool_choice: Literal["REQUIRED", "NONE"] | None = None
    documents: list[str | CohereDocument] | None = None
    citation_options: CohereCitations | None = None
    response_format: CohereFormat | None = None
    safety_mode: Literal["CONTEXTUAL", "STRICT", "OFF"] | None = None
    max_tokens: int | None = None
    stop_sequences: list[str] | None = None
    temperature: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    k: int | None = None
    p: float | None = None
    logprobs: Flag = False
    thinking: CohereThinking | None = None
    priority: Whole = 0


class CohereText(msgspec.Struct, tag="text"):
    """Text of the answer."""

    text: str


class CohereThought(msgspec.Struct, tag="thinking"):
    """The model's reasoning."""

    thinking: str


class CohereFunction(msgspec.Struct):
    """A called function."""

    name: str
    arguments: str  # JSON


class CohereToolCall(msgspec.Struct):
    """A tool call."""

    id: str
    function: CohereFunction
    type: str = "function"


class CohereMessage(msgspec.Struct):
    """A complete answer; a stream starts with an empty one."""

    content: list[CohereText | CohereThought] | UnsetType = UNSET
    tool_calls: list[CohereToolCall] | UnsetType = UNSET
    role: str = "assistant"


class CohereTokens(msgspec.Struct):
    """Numbers of tokens."""

    input_tokens: int
    output_tokens: int


class CohereUsage(msgspec.Struct):
    """Token counts of a request, which nobody is billed for."""

    billed_units: CohereTokens
    tokens: CohereTokens
    cached_tokens: int | UnsetType = UNSET


class CohereLogprobs(msgspec.Struct):
    """Log-probabilities of some tokens, and their text together."""

    text: str
    token_ids: list[int]
    logprobs: list[float]


CohereFinish = Literal["COMPLETE", "STOP_SEQUENCE", "MAX_TOKENS", "TOOL_CALL", "ERROR"]


class CohereAnswer(msgspec.Struct):
    """The complete response."""

    id: str
    finish_reason: CohereFinish
    message: CohereMessage
    usage: CohereUsage
    logprobs: list[CohereLogprobs] | UnsetType = UNSET


class _Started(msgspec.Struct):
    message: CohereMessage


class _Begun(msgspec.Struct):
    content: CohereText | CohereThought


class _BegunContent(msgspec.Struct):
    message: _Begun


class _Piece(msgspec.Struct, omit_defaults=True):
    text: str = ""
    thinking: str = ""


class _Pieces(msgspec.Struct):
    content: _Piece


class _MoreContent(msgspec.Struct):
    message: _Pieces


class _Call(msgspec.Struct):
    tool_calls: CohereToolCall


class _BegunCall(msgspec.Struct):
    message: _Call


class _Arguments(msgspec.Struct):
    arguments: str


class _CallPiece(msgspec.Struct):
    function: _Arguments


class _CallPieces(msgspec.Struct):
    tool_calls: _CallPiece


class _MoreCall(msgspec.Struct):
    message: _CallPieces


class _Ended(msgspec.Struct):
    finish_reason: CohereFinish
    usage: CohereUsage
    error: str | UnsetType = UNSET


class CohereMessageStart(msgspec.Struct, tag="message-start"):
    """The beginning of the stream."""

    id: str
    delta: _Started

    @classmethod
    def of(cls, identity: str) -> CohereMessageStart:
        """The event for an answer with this id."""
        return cls(identity, _Started(CohereMessage([], [])))


class CohereContentStart(msgspec.Struct, tag="content-start"):
    """The beginning of a text, or of a thought."""

    index: int
    delta: _BegunContent

    @classmethod
    def of(cls, index: int, content: CohereText | CohereThought) -> CohereContentStart:
        """The event for an empty content."""
        return cls(index, _BegunContent(_Begun(content)))


class CohereContentDelta(msgspec.Struct, tag="content-delta"):
    """More of a text, or of a thought."""

    index: int
    delta: _MoreContent
    logprobs: CohereLogprobs | UnsetType = UNSET

    @classmethod
    def of(cls, index: int, text: str = "", thinking: str = "") -> CohereContentDelta:
        """The event for a piece of one or the other."""
        return cls(index, _MoreContent(_Pieces(_Piece(text, thinking))))


class CohereContentEnd(msgspec.Struct, tag="content-end"):
    """The end of a text, or of a thought."""

    index: int


class CohereCallStart(msgspec.Struct, tag="tool-call-start"):
    """The beginning of a tool call."""

    index: int
    delta: _BegunCall

    @classmethod
    def of(cls, index: int, call: CohereToolCall) -> CohereCallStart:
        """The event for a call without its arguments."""
        return cls(index, _BegunCall(_Call(call)))


class CohereCallDelta(msgspec.Struct, tag="tool-call-delta"):
    """More of a call's arguments."""

    index: int
    delta: _MoreCall

    @classmethod
    def of(cls, index: int, arguments: str) -> CohereCallDelta:
        """The event for a piece of the arguments."""
        return cls(index, _MoreCall(_CallPieces(_CallPiece(_Arguments(arguments)))))


class CohereCallEnd(msgspec.Struct, tag="tool-call-end"):
    """The end of a tool call."""

    index: int


class CohereMessageEnd(msgspec.Struct, tag="message-end"):
    """The end of the stream."""

    delta: _Ended

    @classmethod
    def of(cls, reason: CohereFinish, usage: CohereUsage, error: str | UnsetType = UNSET) -> CohereMessageEnd:
        """The event for an answer that has ended for this reason."""
        return cls(_Ended(reason, usage, error))


CohereEvent = (
    CohereMessageStart
    | CohereContentStart
    | CohereContentDelta
    | CohereContentEnd
    | CohereCallStart
    | CohereCallDelta
    | CohereCallEnd
    | CohereMessageEnd
)
