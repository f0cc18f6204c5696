"""Reasoning between marks, followed by an answer in tags of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from gateway.answers.context import AnswerContext
from gateway.answers.deltas import Content, Delta
from gateway.answers.markers import Markers
from gateway.reasoning_parsers.base import MAX_BLANKS, MarkedParser, without_blanks


class AnswerInTags(MarkedParser):
    """Removes the first tag if the answer begins with it; then also the last tag if the answer ends with it."""

    answer_start: ClassVar[str]
    answer_end: ClassVar[str]

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._tagged: bool | None = None  # whether the answer has a first tag; None until known
        self._empty = True  # whether it has no text yet
        self._waiting = ""  # text of the answer held back
        self._end = Markers(self.answer_end)

    def parse_answer(self, text: str) -> Sequence[Delta]:
        text = self._waiting + text
        self._waiting = ""
        if self._tagged is None:
            text = self._look_for_tag(text)
        if self._tagged and self._empty:
            text = text.lstrip(self.blanks)
            self._empty = not text
        if self._tagged:
            text, self._waiting = self._divide(text)
        return [Content(text)] if text else []

    def end_answer(self, text: str) -> Sequence[Delta]:
        found = self.parse_answer(text)
        if not self._waiting or (self._tagged and self._waiting.strip(self.blanks) == self.answer_end):
            return found
        return [*found, Content(self._waiting)]

    def _look_for_tag(self, text: str) -> str:
        """Returns the text without the first tag; empty while the tag may still come."""
        inside = text.lstrip(self.blanks)
        if len(text) - len(inside) <= MAX_BLANKS:
            if len(inside) < len(self.answer_start) and self.answer_start.startswith(inside):
                self._waiting = text
                return ""
            self._tagged = inside.startswith(self.answer_start)
        else:
            self._tagged = False
        return inside.removeprefix(self.answer_start) if self._tagged else text

    def _divide(self, text: str) -> tuple[str, str]:
        """Splits the text into what is certain, and what may be the last tag, with blanks around it."""
        inside = text.rstrip(self.blanks)
        if inside.endswith(self.answer_end) and len(text) - len(inside) <= MAX_BLANKS:
            certain = inside.removesuffix(self.answer_end)
        else:
            certain = text[: self._end.find(text, max(0, len(text) - len(self.answer_end) + 1))[0]]
        certain = without_blanks(certain, self.blanks)
        return certain, text[len(certain) :]


class ThinkAndAnswerTags(AnswerInTags):
    """Hunyuan-A13B: `<think>…</think>` and `<answer>…</answer>`."""

    start_mark = "<think>"
    end_mark = "</think>"
    answer_start = "<answer>"
    answer_end = "</answer>"
    special_tokens = (start_mark, end_mark, answer_start, answer_end)


class ThinkAndResponseTags(AnswerInTags):
    """ERNIE 4.5: `<think>…</think>` and `<response>…</response>`."""

    start_mark = "<think>"
    end_mark = "</think>"
    answer_start = "<response>"
    answer_end = "</response>"
    special_tokens = (start_mark, end_mark, answer_start, answer_end)
