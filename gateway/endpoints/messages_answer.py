"""Formats an answer for Anthropic's API, streamed or whole: blocks of thinking, text and tool calls, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from gateway.answers.collecting import CollectedChoice
from gateway.answers.deltas import ChoiceUpdate, Content, Delta, Finish, FinishReason, Reasoning, ToolCall
from gateway.answers.events import event
from gateway.context import GatewayContext
from gateway.endpoints import kv_transfer
from gateway.endpoints.one_answer import CollectedAnswer
from gateway.errors import messages_error
from gateway.protocol.messages import (
    AnswerBlock,
    BlockDelta,
    BlockStart,
    BlockStop,
    InputDelta,
    MessageDelta,
    MessagesAnswerBody,
    MessagesEvent,
    MessagesRequest,
    MessageStart,
    MessageStop,
    MessagesUsage,
    SignatureDelta,
    StopDelta,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)
from gateway.requests.state import RequestState
from quire.error_tables import mapping_of
from quire.errors import QuireError


class MessagesAnswer(CollectedAnswer):
    """Writes the answer to one request."""

    def __init__(self, context: GatewayContext, body: MessagesRequest, state: RequestState) -> None:
        super().__init__(context, state, streams=bool(body.stream))
        self._block: AnswerBlock | None = None  # the open block
        self._index = -1  # index of that block
        self._call = -1  # index of the last tool call
        self._finish = Finish(FinishReason.STOP)
        self._called = False

    def opening(self) -> Iterator[bytes]:
        """See EventWriter."""
        yield _event(MessageStart(self._message([])))

    def update(self, update: ChoiceUpdate) -> Iterator[bytes]:
        """See EventWriter."""
        self._num_tokens += len(update.token_ids)
        for delta in update.deltas:
            yield from map(_event, self._told(delta))

    def closing(self, error: QuireError | None) -> Iterator[bytes]:
        """See EventWriter."""
        if error:
            failure = messages_error(mapping_of(error).http_status, error.message)
            yield event(failure, failure.type)
            return
        yield from map(_event, self._close())
        reason, sequence = self._stop()
        transfer = kv_transfer.told(self._context, self.state)
        yield _event(MessageDelta(StopDelta(reason, sequence), self._usage(), transfer))
        yield _event(MessageStop())

    def _told(self, delta: Delta) -> Iterator[MessagesEvent]:
        match delta:
            case Finish():
                self._finish = delta
            case Reasoning(text):
                yield from self._go_on(ThinkingBlock(""))
                yield BlockDelta(self._index, ThinkingDelta(text))
            case Content(text):
                yield from self._go_on(TextBlock(""))
                yield BlockDelta(self._index, TextDelta(text))
            case ToolCall(index, arguments, identity, name):
                if index != self._call:
                    self._call, self._called = index, True
                    yield from self._open(ToolUseBlock(identity, name, {}))
                if arguments:
                    yield BlockDelta(self._index, InputDelta(arguments))

    def _go_on(self, block: AnswerBlock) -> Iterator[MessagesEvent]:
        """Opens this block, unless a block of the same type is already open."""
        if type(self._block) is not type(block):
            yield from self._open(block)

    def _open(self, block: AnswerBlock) -> Iterator[MessagesEvent]:
        yield from self._close()
        self._block, self._index = block, self._index + 1
        yield BlockStart(self._index, block)

    def _close(self) -> Iterator[MessagesEvent]:
        if isinstance(self._block, ThinkingBlock):
            yield BlockDelta(self._index, SignatureDelta())
        if self._block is not None:
            yield BlockStop(self._index)
        self._block = None

    def _whole(self, choice: CollectedChoice) -> MessagesAnswerBody:
        self._finish, self._called = choice.finish, bool(choice.tool_calls)
        message = self._message(list(map(_block_of, choice.parts)))
        message.stop_reason, message.stop_sequence = self._stop()
        message.kv_transfer_params = kv_transfer.told(self._context, self.state)
        return message

    def _message(self, content: list[AnswerBlock]) -> MessagesAnswerBody:
        request = self.state.request
        return MessagesAnswerBody(f"msg_{request.request_id}", request.answering_model, content, self._usage())

    def _usage(self) -> MessagesUsage:
        cached = self.state.cached_tokens if self._context.options.enable_prompt_tokens_details else 0
        return MessagesUsage(self.state.prompt_tokens - cached, self._num_tokens, cache_read_input_tokens=cached)

    def _stop(self) -> tuple[StopReason, str | None]:
        """Returns the stop reason, and the stop sequence if one ended the answer."""
        if self._finish.reason is FinishReason.LENGTH:
            return "max_tokens", None
        if self._called:
            return "tool_use", None
        sequence = self._finish.stop_reason
        return ("stop_sequence", sequence) if isinstance(sequence, str) else ("end_turn", None)


def _event(content: MessagesEvent) -> bytes:
    return event(content, str(type(content).__struct_config__.tag))


def _block_of(part: Content | Reasoning | ToolCall) -> AnswerBlock:
    match part:
        case Reasoning(text):
            return ThinkingBlock(text)
        case Content(text):
            return TextBlock(text)
        case ToolCall(_, arguments, identity, name):
            return ToolUseBlock(identity, name, _input(arguments))


def _input(arguments: str) -> dict[str, Any]:
    """Returns a call's arguments; empty if max_tokens cut them off, so that they are not valid JSON, or they nest too
    deeply."""
    try:
        found = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
