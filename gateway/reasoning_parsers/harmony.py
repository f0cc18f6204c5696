"""Harmony, the format of gpt-oss: an answer is a row of messages, each in a channel and perhaps for a recipient.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>final<|message|>…

The prompt ends with `<|start|>assistant`, so that an output begins in the middle of its first message's header.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence

from gateway.answers.context import AnswerContext
from gateway.answers.deltas import Content, Delta, Finish, Reasoning
from gateway.reasoning_parsers.base import ReasoningParser, first_of, longest_beginning

_START, _CHANNEL, _MESSAGE, _CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
# What ends a message's text: the last two begin another message.
_ENDS = ("<|end|>", "<|return|>", "<|call|>", _START, _CHANNEL)
# By these a header is known.
_FIRST = (_START, _CHANNEL, _MESSAGE, " to=")
# What is longer is no header: names of tools have 64 characters.
_MAX_HEADER = 256
_RECIPIENT = re.compile(r"to=([^\s<]{1,128})")
_NAME = re.compile(re.escape(_CHANNEL) + r"\s{0,8}([a-z]{1,32})")


class _Place(enum.Enum):
    BETWEEN = enum.auto()  # messages, or before the first
    HEADER = enum.auto()
    TEXT = enum.auto()


class HarmonyChannels(ReasoningParser):
    """Messages in the channel `analysis`, and those for tools that nobody has given, are reasoning; others content.

    Text outside of any message is content.
    """

    start_mark = "<|channel|>analysis<|message|>"
    end_mark = "<|channel|>final<|message|>"
    is_optional = False
    stretch_end_mark = "<|end|>"
    special_tokens = (*_ENDS, _MESSAGE, _CONSTRAIN)

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._place = _Place.BETWEEN
        self._kind: type[Content | Reasoning] = Content
        self._steps = {
            _Place.BETWEEN: self._look_for_header,
            _Place.HEADER: self._read_header,
            _Place.TEXT: self._read_text,
        }

    def step(self) -> Sequence[Delta] | None:
        return self._steps[self._place]()

    def end(self, finish: Finish) -> Sequence[Delta]:
        """What was held back, but for a header whose message never came."""
        if self._place is not _Place.TEXT:
            self._kind = Content
        is_header = self._place is _Place.HEADER and self.held.startswith((_START, _CHANNEL))
        return [*([] if is_header else self._said(self.held)), finish]

    def _said(self, text: str) -> Sequence[Delta]:
        return [self._kind(text)] if text else []

    def _look_for_header(self) -> Sequence[Delta] | None:
        if self.held.startswith(_FIRST):
            self._place = _Place.HEADER
        elif any(first.startswith(self.held) for first in _FIRST):
            return None
        else:
            self._place, self._kind = _Place.TEXT, Content
        return ()

    def _read_header(self) -> Sequence[Delta] | None:
        header, mark, rest = self.held.partition(_MESSAGE)
        if mark and len(header) <= _MAX_HEADER:
            self._place, self._kind, self.held = _Place.TEXT, _kind_of(header), rest
            return ()
        if len(self.held) < _MAX_HEADER + len(_MESSAGE):
            return None
        self._place, self._kind, self.held = _Place.TEXT, Content, self.held[_MAX_HEADER:]
        return self._said(header[:_MAX_HEADER])

    def _read_text(self) -> Sequence[Delta] | None:
        found = first_of(_ENDS, self.held)
        if found is None:
            certain = self.held[: len(self.held) - longest_beginning(self.held, _ENDS)]
            self.held = self.held[len(certain) :]
            return self._said(certain) or None
        stop, mark = found
        certain, self.held = self.held[:stop], self.held[stop:]
        if mark in _FIRST:
            self._place = _Place.HEADER
        else:
            self._place, self.held = _Place.BETWEEN, self.held.removeprefix(mark)
        return self._said(certain)


def _kind_of(header: str) -> type[Content | Reasoning]:
    """What the text behind a header is."""
    channel, recipient = _NAME.search(header), _RECIPIENT.search(header)
    if recipient:
        return Content if recipient[1].startswith("functions.") else Reasoning
    return Reasoning if channel and channel[1] == "analysis" else Content
