"""Calls as elements with attributes: `<invoke name="get_weather"><parameter name="city">Bonn</parameter></invoke>`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from gateway.answers.context import AnswerContext, Tool
from gateway.answers.markers import Markers
from gateway.tool_parsers.argument_forms import elements_form
from gateway.tool_parsers.base import CallSyntax, MarkedToolParser
from gateway.tool_parsers.scanner import Steps
from gateway.tool_parsers.schema_values import NO_STRING, STRING, ArgumentWriter, ParameterTypes

_NAME = re.compile(r"[^\"'<>\n]*+")


class InvocationParser(MarkedToolParser):
    """Calls between a pair of tags. Values are text, which is converted to JSON."""

    # In front of the names of all elements.
    prefix: ClassVar[str] = ""

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._types = ParameterTypes(context)
        self._invoke, self._end = f"<{self.prefix}invoke name=", f"</{self.prefix}invoke>"
        self._parameter, self._parameter_end = f"<{self.prefix}parameter name=", f"</{self.prefix}parameter>"
        # A value without an end tag ends where the next element begins.
        self._value_ends = Markers(self._parameter_end, self._parameter, self._end)

    def read_calls(self, marker: str) -> Steps[None]:
        if marker != self._invoke:
            yield from self.text.peek_past_space()
            yield from self.text.expect(self._invoke)
        name = yield from self._read_name()
        yield from self.text.expect(">")
        self.begin_call(name)
        arguments = ArgumentWriter(self._types, name, self.found.arguments)
        element = yield from self._next_element()
        while element == self._parameter:
            element = yield from self._read_parameter(arguments)
        arguments.close()
        yield from self.close()

    def _read_name(self) -> Steps[str]:
        quote = yield from self.text.accept('"', "'")
        name = yield from self.text.word(_NAME)
        if quote:
            yield from self.text.expect(quote)
        return name

    def _next_element(self) -> Steps[str]:
        yield from self.text.peek_past_space()
        return (yield from self.text.accept(self._parameter, self._end))

    def _read_parameter(self, arguments: ArgumentWriter) -> Steps[str]:
        """Reads the rest of a parameter; returns the element after it."""
        name = yield from self._read_name()
        value = arguments.value(name, types=(yield from self.read_types()))
        element = yield from self.text.until(self._value_ends, value)
        value.close()
        return (yield from self._next_element()) if element == self._parameter_end else element

    def read_types(self) -> Steps[frozenset[str] | None]:
        """Reads the end of a parameter's tag; returns the types that it says the value has, None for the schema's.

        Raises:
            NotACallError: the tag does not end.
        """
        yield from self.text.expect(">")
        return None


class MiniMaxM2(InvocationParser):
    """MiniMax-M2. The schema decides the types."""

    begins = ("<minimax:tool_call>", "<invoke name=")
    ends = ("</minimax:tool_call>",)
    special_tokens = ("<minimax:tool_call>", *ends)

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        return CallSyntax(f'<invoke name="{name}">\n', "</invoke>", f"{cls.begins[0]}\n", "\n", f"\n{cls.ends[0]}")

    @classmethod
    def argument_form(cls, tool: Tool) -> Mapping[str, Any]:
        return elements_form(tool, '<parameter name="', '">', "</parameter>\n")


class DeepSeekV32(InvocationParser):
    """DeepSeek-V3.2. A parameter says whether it is a string; otherwise, it is JSON."""

    prefix = "｜DSML｜"
    begins = (f"<{prefix}function_calls>", f"<{prefix}invoke name=")
    ends = (f"</{prefix}function_calls>",)
    special_tokens = (prefix,)

    def read_types(self) -> Steps[frozenset[str] | None]:
        yield from self.text.peek_past_space()
        kind = yield from self.text.accept('string="true"', 'string="false"')
        yield from self.text.expect(">")
        return {'string="true"': STRING, 'string="false"': NO_STRING}.get(kind)

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        begin, end = f'<{cls.prefix}invoke name="{name}">\n', f"</{cls.prefix}invoke>"
        return CallSyntax(begin, end, f"{cls.begins[0]}\n", "\n", f"\n{cls.ends[0]}")

    @classmethod
    def argument_form(cls, tool: Tool) -> Mapping[str, Any]:
        begin, end = f'<{cls.prefix}parameter name="', f"</{cls.prefix}parameter>\n"
        return elements_form(tool, begin, '" string="true">', end, '" string="false">')


class DeepSeekV4(DeepSeekV32):
    """DeepSeek-V4. Only the element around the calls has another name."""

    begins = (f"<{DeepSeekV32.prefix}tool_calls>", DeepSeekV32.begins[1])
    ends = (f"</{DeepSeekV32.prefix}tool_calls>",)
