"""Answers without their thinking, for requests that do not want it."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.answers.deltas import Content, Delta, Reasoning
from gateway.answers.parser import AnswerParser


class ReasoningOmitted(AnswerParser):
    """Comes last, and drops what others have found."""

    def feed(self, delta: Delta) -> Sequence[Delta]:
        return () if isinstance(delta, Reasoning) else (delta,)

    def parse(self, text: str) -> Sequence[Delta]:
        return (Content(text),)
