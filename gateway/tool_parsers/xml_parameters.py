"""Calls as elements: `<function=get_weather><parameter=city>Bonn</parameter></function>`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.answers.context import AnswerContext, Tool
from gateway.answers.markers import Markers
from gateway.tool_parsers.argument_forms import elements_form
from gateway.tool_parsers.base import CallSyntax, MarkedToolParser
from gateway.tool_parsers.scanner import Steps
from gateway.tool_parsers.schema_values import ArgumentWriter, ParameterTypes

_FUNCTION = "<function="
_PARAMETER = "<parameter="
_PARAMETER_NAME = re.compile(r"[^<>\n]*+")
# A value without an end tag ends where the next element begins.
_VALUE_ENDS = Markers("</parameter>", _PARAMETER, "</function>")


class XmlParameterParser(MarkedToolParser):
    """Qwen3-Coder, Step 3.5, MiMo. Values are text, which is converted to JSON by the tool's schema."""

    begins = ("<tool_call>", _FUNCTION)
    ends = ("</tool_call>",)
    special_tokens = ("<tool_call>", *ends)

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        begin, end = cls.begins[0], cls.ends[0]
        return CallSyntax(f"{begin}\n{_FUNCTION}{name}>\n", f"</function>\n{end}", separator="\n")

    @classmethod
    def argument_form(cls, tool: Tool) -> Mapping[str, Any]:
        return elements_form(tool, _PARAMETER, ">\n", "\n</parameter>\n")

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._types = ParameterTypes(context)

    def read_calls(self, marker: str) -> Steps[None]:
        if marker != _FUNCTION:
            yield from self.text.peek_past_space()
            yield from self.text.expect(_FUNCTION)
        name = yield from self.text.name()
        yield from self.text.peek_past_space()
        yield from self.text.expect(">")
        self.begin_call(name)
        arguments = ArgumentWriter(self._types, name, self.found.arguments)
        yield from self.text.peek_past_space()
        element = yield from self.text.accept(_PARAMETER, "</function>")
        while element == _PARAMETER:
            element = yield from self._read_parameter(arguments)
        arguments.close()
        yield from self.close()

    def _read_parameter(self, arguments: ArgumentWriter) -> Steps[str]:
        """Reads the rest of a parameter; returns the element after it."""
        name = yield from self.text.word(_PARAMETER_NAME)
        yield from self.text.expect(">")
        value = arguments.value(name.strip(), "\n")
        element = yield from self.text.until(_VALUE_ENDS, value)
        value.close()
        if element != "</parameter>":
            return element
        yield from self.text.peek_past_space()
        return (yield from self.text.accept(_PARAMETER, "</function>"))


class SeedOss(XmlParameterParser):
    """Seed-OSS: the same between tags of its own."""

    begins = ("<seed:tool_call>", _FUNCTION)
    ends = ("</seed:tool_call>",)
    special_tokens = ("<seed:tool_call>", *ends)
