"""Events of a response's stream, numbered consecutively."""

from __future__ import annotations

import msgspec

from gateway.protocol.responses import OutputItem, OutputText, ReasoningText, ResponseBody, ResponseLogprob


class ResponseEvent(msgspec.Struct, kw_only=True):
    """Fields of all events; the sequence number is assigned when the event is sent."""

    sequence_number: int = 0


class ResponseCreated(ResponseEvent, tag="response.created"):
    response: ResponseBody


class ResponseInProgress(ResponseEvent, tag="response.in_progress"):
    response: ResponseBody


class ResponseCompleted(ResponseEvent, tag="response.completed"):
    response: ResponseBody


class ResponseIncomplete(ResponseEvent, tag="response.incomplete"):
    response: ResponseBody


class ResponseFailed(ResponseEvent, tag="response.failed"):
    response: ResponseBody


class ItemAdded(ResponseEvent, tag="response.output_item.added"):
    output_index: int
    item: OutputItem


class ItemDone(ResponseEvent, tag="response.output_item.done"):
    output_index: int
    item: OutputItem


class ItemEvent(ResponseEvent, kw_only=True):
    """An event about an output item."""

    item_id: str
    output_index: int


class PartEvent(ItemEvent, kw_only=True):
    """An event about a content part of an item; items have one part."""

    content_index: int = 0


class PartAdded(PartEvent, tag="response.content_part.added"):
    part: OutputText | ReasoningText


class PartDone(PartEvent, tag="response.content_part.done"):
    part: OutputText | ReasoningText


class TextDelta(PartEvent, tag="response.output_text.delta"):
    delta: str
    logprobs: list[ResponseLogprob]


class TextDone(PartEvent, tag="response.output_text.done"):
    text: str
    logprobs: list[ResponseLogprob]


class ReasoningDelta(PartEvent, tag="response.reasoning_text.delta"):
    delta: str


class ReasoningDone(PartEvent, tag="response.reasoning_text.done"):
    text: str


class ArgumentsDelta(ItemEvent, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(ItemEvent, tag="response.function_call_arguments.done"):
    name: str
    arguments: str


class CustomInputDelta(ItemEvent, tag="response.custom_tool_call_input.delta"):
    delta: str


class CustomInputDone(ItemEvent, tag="response.custom_tool_call_input.done"):
    input: str


ResponsesEvent = (
    ResponseCreated
    | ResponseInProgress
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseFailed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ReasoningDelta
    | ReasoningDone
    | ArgumentsDelta
    | ArgumentsDone
    | CustomInputDelta
    | CustomInputDone
)
