"""Base classes of the reasoning formats, including formats with reasoning between two marks."""

from __future__ import annotations

import enum
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from gateway.answers.context import AnswerContext
from gateway.answers.deltas import Content, Delta, Finish, Reasoning
from gateway.answers.markers import Markers
from gateway.answers.parser import AnswerParser

# At most this many line breaks before a mark belong to the mark rather than to the text before it. Further ones are
# text, so that no more than these are ever held back.
MAX_BLANKS = 8


class ReasoningParser(AnswerParser):
    """Finds the reasoning in an answer, step by step. Its marks are also passed to services that read tokens."""

    # Text that opens the reasoning, and text that ends it for good.
    start_mark: ClassVar[str]
    end_mark: ClassVar[str]
    # Whether models with this format reason only if prompt or output opens the reasoning. If not, an answer is
    # reasoning up to the end mark, unless the prompt has closed it.
    is_optional: ClassVar[bool] = True
    # If reasoning can come in several stretches, each opened by the start mark: the text that ends one.
    stretch_end_mark: ClassVar[str] = ""

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        # Text not yet returned begins at `at` in `held`. After `parse`, it is at most a partial mark and its blanks.
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
        """Continues in the held text and advances past what it returns; returns None if it needs more text."""


class _Place(enum.Enum):
    """Position in the text."""

    BEGINNING = enum.auto()  # a start mark may come
    OPENED = enum.auto()  # no text of the reasoning yet
    THINKING = enum.auto()
    CLOSED = enum.auto()  # no text of the answer yet
    ANSWER = enum.auto()


class MarkedParser(ReasoningParser):
    """Reasoning between marks, before the answer. A start mark in the prompt may be repeated in the output or not.

    Line breaks next to the marks belong to the format and to neither part. Once the answer has begun, it is never
    reasoning again, even if it mentions marks; without an end mark, everything is reasoning.
    """

    # Alternative spellings of the marks.
    other_start_marks: ClassVar[tuple[str, ...]] = ()
    other_end_marks: ClassVar[tuple[str, ...]] = ()
    # Texts that begin the answer without an end mark, and belong to it.
    answer_starts: ClassVar[tuple[str, ...]] = ()
    # Whether an answer without reasoning may begin with the end mark, which then belongs to neither part.
    may_begin_closed: ClassVar[bool] = False
    # Characters that may surround marks.
    blanks: ClassVar[str] = "\n"

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._place = _Place.BEGINNING
        self._firsts = dict.fromkeys((self.start_mark, *self.other_start_marks), _Place.OPENED)
        if self.may_begin_closed:
            self._firsts[self.end_mark] = _Place.CLOSED
        self._ends = Markers(self.end_mark, *self.other_end_marks, *self.answer_starts)
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
        """Returns the text of the answer that is certain."""
        return [Content(text)] if text else []

    def end_answer(self, text: str) -> Sequence[Delta]:
        """Returns the last text of the answer, and what was held back of it."""
        return self.parse_answer(text)

    def _begin(self) -> Sequence[Delta] | None:
        text = self.held.lstrip(self.blanks)
        if len(self.held) - len(text) <= MAX_BLANKS:
            for mark, place in self._firsts.items():
                if text.startswith(mark):
                    self._place, self.held = place, text[len(mark) :]
                    return ()
            if any(mark.startswith(text) for mark in self._firsts):
                return None
        self._place = _Place.OPENED if self.context.thinking_is_open else _Place.ANSWER
        return ()

    def _open(self) -> Sequence[Delta] | None:
        self.held = self.held.lstrip(self.blanks)
        if self.held:
            self._place = _Place.THINKING
        return ()

    def _think(self) -> Sequence[Delta] | None:
        """Returns everything except what may be the beginning of an end mark, with the blanks before it."""
        place, mark = self._ends.find(self.held, 0)
        text = without_blanks(self.held[:place], self.blanks)
        if mark:
            self._place = _Place.CLOSED
            self.held = self.held[place if mark in self.answer_starts else place + len(mark) :]
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
    """Removes trailing blanks that may belong to a mark, at most MAX_BLANKS of them."""
    kept = max(0, len(text) - MAX_BLANKS)
    return text[:kept] + text[kept:].rstrip(blanks)
