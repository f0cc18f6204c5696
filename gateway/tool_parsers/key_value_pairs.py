"""Calls as key-value pairs: `<tool_call>get_weather<arg_key>city</arg_key><arg_value>Bonn</arg_value></tool_call>`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gateway.answers.context import AnswerContext, Tool
from gateway.answers.markers import Markers
from gateway.tool_parsers.argument_forms import elements_form
from gateway.tool_parsers.base import CallSyntax, MarkedToolParser
from gateway.tool_parsers.scanner import NotACallError, Steps
from gateway.tool_parsers.schema_values import ArgumentWriter, ParameterTypes

_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"


class KeyValueParser(MarkedToolParser):
    """GLM 4.5 to 4.7, with or without line breaks between the pairs. Strings are unquoted, other values are JSON."""

    begins = ("<tool_call>",)
    ends = ("</tool_call>",)
    special_tokens = (*begins, *ends, _KEY, _KEY_END, _VALUE, _VALUE_END)
    # Text between the pairs, for grammars; the parser accepts both forms.
    line_break: ClassVar[str] = "\n"

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        return CallSyntax(f"<tool_call>{name}{cls.line_break}", "</tool_call>", separator=cls.line_break)

    @classmethod
    def argument_form(cls, tool: Tool) -> Mapping[str, Any]:
        return elements_form(tool, _KEY, f"{_KEY_END}{cls.line_break}{_VALUE}", f"{_VALUE_END}{cls.line_break}")

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._types = ParameterTypes(context)

    def read_calls(self, marker: str) -> Steps[None]:
        name = yield from self.text.name()
        yield from self.text.peek_past_space()
        element = yield from self.text.expect(_KEY, *self.ends)
        self.begin_call(name)
        arguments = ArgumentWriter(self._types, name, self.found.arguments)
        while element == _KEY:
            element = yield from self._read_pair(arguments)
        arguments.close()
        self.unclosed = not element

    def _read_pair(self, arguments: ArgumentWriter) -> Steps[str]:
        """Reads the rest of a pair; returns the element after it."""
        pieces: list[str] = []
        yield from self.text.until(Markers(_KEY_END), pieces.append)
        yield from self.text.peek_past_space()
        if not (yield from self.text.accept(_VALUE)):
            raise NotACallError
        value = arguments.value("".join(pieces).strip())
        yield from self.text.until(Markers(_VALUE_END), value)
        value.close()
        yield from self.text.peek_past_space()
        return (yield from self.text.accept(_KEY, *self.ends))


class Glm47(KeyValueParser):
    """GLM 4.7 omits the line breaks."""

    line_break = ""
