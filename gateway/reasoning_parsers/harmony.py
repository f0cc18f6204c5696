"""Harmony, the format of gpt-oss: an answer is a sequence of messages, each in a channel and perhaps to a recipient.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…
    <|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}<|call|>

The prompt ends with `<|start|>assistant`, so an output begins in the middle of its first message's header.
"""

from __future__ import annotations

import enum
import re
import secrets
from collections.abc import Sequence

from gateway.answers.context import AnswerContext, ToolChoice
from gateway.answers.deltas import Content, Delta, Finish, Reasoning, ToolCall
from gateway.answers.markers import Markers
from gateway.reasoning_parsers.base import ReasoningParser

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
# Tokens that end a message's text; the last two begin another message.
_ENDS = ("<|end|>", "<|return|>", "<|call|>", _START, _CHANNEL)
# Text that a header may begin with.
_FIRST = (_START, _CHANNEL, _MESSAGE, " to=")
_LONGEST_FIRST = max(map(len, _FIRST))
# Longer text is not a header: tool names have at most 64 characters.
_MAX_HEADER = 256
_RECIPIENT = re.compile(r"to=([^\s<]{1,128})")
_FUNCTIONS = "functions."
_NAME = re.compile(re.escape(_CHANNEL) + r"\s{0,8}([a-z]{1,32})")


class _Place(enum.Enum):
    BETWEEN = enum.auto()  # between messages, or before the first
    HEADER = enum.auto()
    TEXT = enum.auto()


class _Kind(enum.Enum):
    """Kind of a message's text."""

    CONTENT = enum.auto()
    REASONING = enum.auto()
    CALL = enum.auto()


class HarmonyChannels(ReasoningParser):
    """Sorts messages into reasoning, tool calls and content.

    Messages in the channel `analysis`, and those to the model's own tools, are reasoning. Messages to functions are
    calls, if there are tools that may be called. Other messages, and text outside messages, are content.
    """

    start_mark = "<|channel|>analysis<|message|>"
    end_mark = "<|channel|>final<|message|>"
    is_optional = False
    stretch_end_mark = "<|end|>"
    special_tokens = (*_ENDS, _MESSAGE, _CONSTRAIN)

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._place = _Place.BETWEEN
        self._kind = _Kind.CONTENT
        self._num_calls = 0
        self._without_arguments = False  # whether the current call has no arguments so far
        self._ends = Markers(*_ENDS)
        self._steps = {
            _Place.BETWEEN: self._look_for_header,
            _Place.HEADER: self._read_header,
            _Place.TEXT: self._read_text,
        }

    def step(self) -> Sequence[Delta] | None:
        return self._steps[self._place]()

    def end(self, finish: Finish) -> Sequence[Delta]:
        """Returns the text held back, except a header whose message never came."""
        held = self.held[self.at :]
        if self._place is _Place.TEXT:
            return [*self._said(held), *self._end_message(), finish]
        is_header = self._place is _Place.HEADER and held.startswith((_START, _CHANNEL))
        return [Content(held), finish] if held and not is_header else [finish]

    def _look_for_header(self) -> Sequence[Delta] | None:
        beginning = self.held[self.at : self.at + _LONGEST_FIRST]
        if beginning.startswith(_FIRST):
            self._place = _Place.HEADER
        elif any(first.startswith(beginning) for first in _FIRST):
            return None
        else:
            self._place = _Place.TEXT
        return ()

    def _read_header(self) -> Sequence[Delta] | None:
        beginning = self.held[self.at : self.at + _MAX_HEADER + len(_MESSAGE)]
        header, mark, _ = beginning.partition(_MESSAGE)
        if mark:
            self._place, self.at = _Place.TEXT, self.at + len(header) + len(mark)
            return self._begin_message(header)
        if len(beginning) < _MAX_HEADER + len(_MESSAGE):
            return None
        self._place, self.at = _Place.TEXT, self.at + _MAX_HEADER
        return self._said(header[:_MAX_HEADER])

    def _read_text(self) -> Sequence[Delta] | None:
        place, mark = self._ends.find(self.held, self.at)
        text, self.at = self.held[self.at : place], place
        if not mark:
            return self._said(text) or None
        found = [*self._said(text), *self._end_message()]
        if mark in _FIRST:
            self._place = _Place.HEADER
        else:
            self._place, self.at = _Place.BETWEEN, place + len(mark)
        return found

    def _begin_message(self, header: str) -> Sequence[Delta]:
        channel, recipient = _NAME.search(header), _RECIPIENT.search(header)
        if recipient and recipient[1].startswith(_FUNCTIONS):
            name = recipient[1].removeprefix(_FUNCTIONS)
            if name and self.context.tools and self.context.tool_choice is not ToolChoice.NONE:
                self._kind, self._without_arguments = _Kind.CALL, True
                return [ToolCall(self._num_calls, "", f"call_{secrets.token_hex(12)}", name)]
        elif recipient or (channel and channel[1] == "analysis"):
            self._kind = _Kind.REASONING
        return ()

    def _said(self, text: str) -> Sequence[Delta]:
        if not text:
            return ()
        if self._kind is _Kind.CALL:
            self._without_arguments = False
            return [ToolCall(self._num_calls, text)]
        return [Content(text) if self._kind is _Kind.CONTENT else Reasoning(text)]

    def _end_message(self) -> Sequence[Delta]:
        """Ends a message: text after it is content until a header says otherwise. An empty call gets `{}`."""
        was, self._kind = self._kind, _Kind.CONTENT
        if was is not _Kind.CALL:
            return ()
        self._num_calls += 1
        return [ToolCall(self._num_calls - 1, "{}")] if self._without_arguments else ()
