"""Calls as key-value pairs: `<tool_call>get_weather<arg_key>city</arg_key><arg_value>Bonn</arg_value></tool_call>`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from gateway.answers.context import AnswerContext, Tool
from gateway.answers.markers import Markers
from gateway.tool_parsers.argument_forms import elements_form
from gateway.tool_parsers.base import CallSyntax, MarkedToolParser
from gateway.tool_parsers.scanner import Steps
from gateway.tool_parsers.schema_values import ArgumentWriter, ParameterTypes


class KeyValueParser(MarkedToolParser):
    """GLM 4.5 to 4.7, with or without line breaks between the pairs. Strings are unquoted, other values are JSON."""

    call: ClassVar[tuple[str, str]] = ("<tool_call>", "</tool_call>")
    begins: ClassVar[tuple[str, ...]] = call[:1]
    ends: ClassVar[tuple[str, ...]] = call[1:]
    key: ClassVar[tuple[str, str]] = ("<arg_key>", "</arg_key>")
    value: ClassVar[tuple[str, str]] = ("<arg_value>", "</arg_value>")
    special_tokens: ClassVar[tuple[str, ...]] = (*call, *key, *value)
    # Text between the pairs, for grammars; the parser accepts both forms.
    line_break: ClassVar[str] = "\n"

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        begin, end = cls.call
        return CallSyntax(f"{begin}{name}{cls.line_break}", end, separator=cls.line_break)

    @classmethod
    def argument_form(cls, tool: Tool) -> Mapping[str, Any]:
        (key, key_end), (value, value_end) = cls.key, cls.value
        return elements_form(tool, key, f"{key_end}{cls.line_break}{value}", f"{value_end}{cls.line_break}")

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._types = ParameterTypes(context)

    def read_calls(self, marker: str) -> Steps[None]:
        name = yield from self.read_name()
        yield from self.text.peek_past_space()
        element = yield from self.text.expect(self.key[0], self.call[1])
        self.begin_call(name)
        arguments = ArgumentWriter(self._types, name, self.found.arguments)
        while element == self.key[0]:
            element = yield from self._read_pair(arguments)
        arguments.close()
        self.unclosed = not element

    def read_name(self) -> Steps[str]:
        """Reads the tool's name, and what else comes before the pairs.

        Raises:
            NotACallError: that is missing.
        """
        return (yield from self.text.name())

    def _read_pair(self, arguments: ArgumentWriter) -> Steps[str]:
        """Reads the rest of a pair; returns the element after it."""
        pieces: list[str] = []
        yield from self.text.until(Markers(self.key[1]), pieces.append)
        if self.value[0]:
            yield from self.text.peek_past_space()
            yield from self.text.expect(self.value[0])
        value = arguments.value("".join(pieces).strip())
        yield from self.text.until(Markers(self.value[1]), value)
        value.close()
        yield from self.text.peek_past_space()
        return (yield from self.text.accept(self.key[0], self.call[1]))


class Glm47(KeyValueParser):
    """GLM 4.7 omits the line breaks."""

    line_break = ""


class KeyValueRowParser(KeyValueParser):
    """The same in a row that has tags, too."""

    # Behind a tool's name.
    name_end: ClassVar[str] = ""

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        (begin, end), row, row_end = cls.call, cls.begins[0], cls.ends[0]
        return CallSyntax(f"{begin}{name}{cls.name_end}\n", end, f"{row}\n", "\n", f"\n{row_end}")

    def read_calls(self, marker: str) -> Steps[None]:
        if marker != self.call[0]:
            yield from self.text.peek_past_space()
            yield from self.text.expect(self.call[0])
        yield from super().read_calls(marker)
        self.unclosed = True  # until the row is
        yield from self.close()

    def read_name(self) -> Steps[str]:
        name = yield from self.text.name()
        if self.name_end:
            yield from self.text.expect(self.name_end)
        return name


class Hunyuan3(KeyValueRowParser):
    """Hunyuan 3: its tokens have a suffix."""

    call = ("<tool_call:opensource>", "</tool_call:opensource>")
    begins, ends = ("<tool_calls:opensource>", call[0]), ("</tool_calls:opensource>",)
    key = ("<arg_key:opensource>", "</arg_key:opensource>")
    value = ("<arg_value:opensource>", "</arg_value:opensource>")
    name_end = "<tool_sep:opensource>"
    special_tokens = (*begins, *ends, call[1], *key, *value, name_end)


class Hunyuan4(KeyValueRowParser):
    """Hunyuan 4: another suffix, and no token behind the name."""

    call = ("<tool_call:6124c78e>", "</tool_call:6124c78e>")
    begins, ends = ("<tool_calls:6124c78e>", call[0]), ("</tool_calls:6124c78e>",)
    key = ("<arg_key:6124c78e>", "</arg_key:6124c78e>")
    value = ("<arg_value:6124c78e>", "</arg_value:6124c78e>")
    special_tokens = (*begins, *ends, call[1], *key, *value)


class SolarOpen2(KeyValueParser):
    """Solar Open 2: one token ends the key and begins the value."""

    call = ("<|tool_call:start|>", "<|tool_call:end|>")
    begins, ends = call[:1], call[1:]
    key = ("<|tool_arg:start|>", "<|tool_arg:value|>")
    value = ("", "<|tool_arg:end|>")
    special_tokens = (*call, *key, value[1])

    @classmethod
    def argument_form(cls, tool: Tool) -> Mapping[str, Any]:
        return elements_form(tool, *cls.key, f"{cls.value[1]}\n")
