"""Calls in Python syntax: `[get_weather(city="Bonn"), now()]`, with literals as keyword arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from gateway.answers.context import Tool
from gateway.tool_parsers.argument_forms import keywords_form
from gateway.tool_parsers.base import CallSyntax, MarkedToolParser
from gateway.tool_parsers.python_values import json_text, read_literal
from gateway.tool_parsers.scanner import NotACallError, Steps

_NAME = re.compile(r"[-.\w]*+")


class PythonCallParser(MarkedToolParser):
    """A list of calls that makes up the whole answer. Brackets later in the text are content."""

    bare = "["
    # Open and close the row of calls; empty if markers do that.
    brackets: ClassVar[str] = "[]"

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        return CallSyntax(f"{name}(", ")", "[", ", ", "]")

    @classmethod
    def argument_form(cls, tool: Tool) -> Mapping[str, Any]:
        return keywords_form(tool)

    def read_calls(self, marker: str) -> Steps[None]:
        yield from self.text.peek_past_space()
        if self.brackets:
            yield from self.text.expect(self.brackets[0])
        yield from self._read_call()
        while True:
            self.text.hold()
            following = yield from self.text.peek_past_space()
            if following == ",":
                self.text.take(1)
            elif _NAME.fullmatch(following):
                yield from self._read_call()
            else:
                break
        if self.brackets:
            yield from self.text.expect(self.brackets[1])
            self.text.let_go()
        yield from self.close()

    def _read_call(self) -> Steps[None]:
        yield from self.text.peek_past_space()
        name = yield from self.text.word(_NAME)
        yield from self.text.peek_past_space()
        yield from self.text.expect("(")
        separator = "{"
        while (yield from self.text.peek_past_space()) != ")":
            key = yield from self._read_key()
            if separator == "{":
                self.begin_call(name)
            self.found.arguments(f'{separator}"{json_text(key)}": ')
            yield from read_literal(self.text, self.found.arguments)
            separator = ", "
            if (yield from self.text.peek_past_space()) == ",":
                self.text.take(1)
        self.text.take(1)
        if separator == "{":
            self.begin_call(name)
            self.found.arguments("{")
        self.found.arguments("}")

    def _read_key(self) -> Steps[str]:
        key = yield from self.text.word(_NAME)
        yield from self.text.peek_past_space()
        yield from self.text.expect("=")
        if not key:
            raise NotACallError
        return key


class Llama4Python(PythonCallParser):
    """Llama 4: the list may be between special tokens."""

    begins = ("<|python_start|>",)
    ends = ("<|python_end|>",)
    special_tokens = begins + ends


class Lfm2(PythonCallParser):
    """LFM2: the list between special tokens, anywhere in the text."""

    begins = ("<|tool_call_start|>",)
    ends = ("<|tool_call_end|>",)
    special_tokens = begins + ends
    bare = ""

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        return CallSyntax(f"{name}(", ")", f"{cls.begins[0]}[", ", ", f"]{cls.ends[0]}")


class Olmo3(PythonCallParser):
    """OLMo 3: one call per line, all between tags."""

    begins = ("<function_calls>",)
    ends = ("</function_calls>",)
    special_tokens = begins + ends
    bare = ""
    brackets = ""

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        return CallSyntax(f"{name}(", ")", "<function_calls>\n", "\n", "\n</function_calls>")
