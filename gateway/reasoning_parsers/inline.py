"""Reasoning that stays in the content, marked as the model marks it."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.answers.context import AnswerContext
from gateway.answers.deltas import Content, Delta, Finish
from gateway.reasoning_parsers.base import MAX_BLANKS, ReasoningParser


class ThinkInContent(ReasoningParser):
    """`<think>…</think>` in front of the answer, with the start tag if only the prompt has it.

    For clients that pass the content of earlier turns back, from which some templates take the reasoning.
    """

    start_mark = "<think>"
    end_mark = "</think>"
    is_optional = False
    special_tokens = (start_mark, end_mark)

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._begun = not context.thinking_is_open

    def step(self) -> Sequence[Delta] | None:
        text = self.held[self.at :]
        if not self._begun:
            first = text.lstrip("\n")
            may_have_tag = len(text) - len(first) <= MAX_BLANKS
            if may_have_tag and len(first) < len(self.start_mark) and self.start_mark.startswith(first):
                return None
            self._begun = True
            if not (may_have_tag and first.startswith(self.start_mark)):
                text = self.start_mark + text
        self.at = len(self.held)
        return [Content(text)]

    def end(self, finish: Finish) -> Sequence[Delta]:
        text, self.at = self.held[self.at :], len(self.held)
        return [Content(text if self._begun else self.start_mark + text), finish] if text else [finish]
