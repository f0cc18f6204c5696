"""Allows at most one call, for requests with `parallel_tool_calls: false`."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.answers.deltas import Content, Delta, ToolCall
from gateway.answers.parser import AnswerParser


class FirstCallOnly(AnswerParser):
    """Runs after the tool parser, and drops all calls except the first."""

    def feed(self, delta: Delta) -> Sequence[Delta]:
        return () if isinstance(delta, ToolCall) and delta.index else (delta,)

    def parse(self, text: str) -> Sequence[Delta]:
        return (Content(text),)
