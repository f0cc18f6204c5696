"""What a format of reasoning tells of itself, and how a text is read that has its thinking between two marks."""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from gateway.answers.context import AnswerContext
from gateway.answers.deltas import Content, Delta, Finish, Reasoning
from gateway.answers.markers import Markers
from gateway.answers.parser import AnswerParser

# Line breaks before a mark that belong to it, and not to the text before: more of them stay text, so that no more than
# these ever wait.
MAX_BLANKS = 8


class ReasoningParser(AnswerParser):
    """Finds the thinking in an answer, step by step. What it tells of its marks goes to services that read tokens."""

    # What opens the thinking, and what ends it for good, as text.
    start_mark: ClassVar[str]
    end_mark: ClassVar[str]
    # Whether models of this format think only where prompt or output opens it. Otherwise an answer is thinking up to
    # the end mark, unless the prompt has closed it.
    is_optional: ClassVar[bool] = True
    # Where the thinking comes in several stretches, each opened by the start mark: what ends one.
    stretch_end_mark: ClassVar[str] = ""

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        # What has come and is not told yet begins at `at` in this: a mark with its blanks at most, once `parse` ends.
        self.held = ""
        self.at = 0

    def parse(self, text: str) -> Sequence[Delta]:
        self.held, self.at = self.held[self.at :] + text, 0
        found: list[Delta] = []
        while self.at < len(self.held) and (read := self.step()) is not None:
            found += read
        return found

    @abstractmethod
    def step(self) -> Sequence[Delta] | None:
        """Reads on in what is held, and takes what it tells; None until more text has come."""


class _Place(enum.Enum):
    """How far a text has come."""

    BEGINNING = enum.auto()  # a start mark may come
    OPENED = enum.auto()  # no word of thinking yet
    THINKING = enum.auto()
    CLOSED = enum.auto()  # no word of the answer yet
    ANSWER = enum.auto()


class MarkedParser(ReasoningParser):
    """Thinking stands before the answer, between marks; a start mark that the prompt has may be repeated or missing.

    Line breaks beside the marks are the format's and belong to neither part. An answer that has begun is never thinking
    again, whatever it says of marks; without an end mark all is thinking.
    """

    # Further ways of writing the marks.
    other_start_marks: ClassVar[tuple[str, ...]] = ()
    other_end_marks: ClassVar[tuple[str, ...]] = ()
    # What may stand around marks.
    blanks: ClassVar[str] = "\n"

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._place = _Place.BEGINNING
        self._starts = (self.start_mark, *self.other_start_marks)
        self._ends = Markers(self.end_mark, *self.other_end_marks)
        self._steps = {
            _Place.BEGINNING: self._begin,
            _Place.OPENED: self._open,
            _Place.THINKING: self._think,
            _Place.CLOSED: self._close,
            _Place.ANSWER: self._answer,
        }

    def step(self) -> Sequence[Delta] | None:
        return self._steps[self._place]()

    def end(self, finish: Finish) -> Sequence[Delta]:
        if self._place is _Place.BEGINNING and self.context.thinking_is_open:
            self._place, self.held = _Place.OPENED, self.held.lstrip(self.blanks)
        held, self.held = self.held, ""
        if self._place in (_Place.OPENED, _Place.THINKING):
            return [*self._thought(held), finish]
        return [*self.end_answer(held), finish]

    def parse_answer(self, text: str) -> Sequence[Delta]:
        """What is certain of the answer's own text."""
        return [Content(text)] if text else []

    def end_answer(self, text: str) -> Sequence[Delta]:
        """The last of the answer's text, and what was held back of it."""
        return self.parse_answer(text)

    def _begin(self) -> Sequence[Delta] | None:
        text = self.held.lstrip(self.blanks)
        if len(self.held) - len(text) <= MAX_BLANKS:
            for mark in self._starts:
                if text.startswith(mark):
                    self._place, self.held = _Place.OPENED, text[len(mark) :]
                    return ()
            if any(mark.startswith(text) for mark in self._starts):
                return None
        self._place = _Place.OPENED if self.context.thinking_is_open else _Place.ANSWER
        return ()

    def _open(self) -> Sequence[Delta] | None:
        self.held = self.held.lstrip(self.blanks)
        if self.held:
            self._place = _Place.THINKING
        return ()

    def _think(self) -> Sequence[Delta] | None:
        """All but what may be the beginning of an end mark, with the blanks before it."""
        place, mark = self._ends.find(self.held, 0)
        text = without_blanks(self.held[:place], self.blanks)
        if mark:
            self._place, self.held = _Place.CLOSED, self.held[place + len(mark) :]
            return self._thought(text)
        self.held = self.held[len(text) :]
        return self._thought(text) or None

    def _thought(self, text: str) -> Sequence[Delta]:
        return [Reasoning(text)] if text else []

    def _close(self) -> Sequence[Delta] | None:
        self.held = self.held.lstrip(self.blanks)
        if self.held:
            self._place = _Place.ANSWER
        return ()

    def _answer(self) -> Sequence[Delta] | None:
        text, self.held = self.held, ""
        return self.parse_answer(text)


def without_blanks(text: str, blanks: str) -> str:
    """The text without so many blanks at its end as may belong to a mark."""
    kept = max(0, len(text) - MAX_BLANKS)
    return text[:kept] + text[kept:].rstrip(blanks)
