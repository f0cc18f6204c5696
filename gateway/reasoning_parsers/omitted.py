"""Removes the reasoning from answers, for requests that do not want it."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.answers.deltas import Content, Delta, Reasoning
from gateway.answers.parser import AnswerParser


class ReasoningOmitted(AnswerParser):
    """Runs last, and drops the reasoning that other parsers have found."""

    def feed(self, delta: Delta) -> Sequence[Delta]:
        return () if isinstance(delta, Reasoning) else (delta,)

    def parse(self, text: str) -> Sequence[Delta]:
        return (Content(text),)
