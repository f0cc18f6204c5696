"""Forced calls for models whose call format is not JSON or unknown: plain JSON, enforced by a grammar."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.answers.context import AnswerContext
from gateway.answers.deltas import Delta, ToolCall
from gateway.tool_parsers.base import CallSyntax, ToolParser, new_call_id
from gateway.tool_parsers.json_lists import JsonListParser


class NamedArguments(ToolParser):
    """The whole answer is the arguments of the named function."""

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._begun = False

    def parse(self, text: str) -> Sequence[Delta]:
        if self._begun:
            return (ToolCall(0, text),)
        self._begun = True
        return (ToolCall(0, text, new_call_id(), self.context.tools[0].name),)

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        return CallSyntax("", "")


class PlainCalls(JsonListParser):
    """The whole answer is a list, `[{"name": …, "parameters": …}, …]`."""

    bare = "["
    arguments_key = "parameters"
