"""Calls with words in place of quotation marks: `call:get_weather{city:<|"|>Bonn<|"|>,days:3}`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from gateway.answers.context import AnswerContext, Tool
from gateway.answers.markers import Markers
from gateway.tool_parsers.argument_forms import keywords_form
from gateway.tool_parsers.base import CallSyntax, MarkedToolParser
from gateway.tool_parsers.json_text import read_string, read_value
from gateway.tool_parsers.nested_values import read_nested
from gateway.tool_parsers.python_values import json_text
from gateway.tool_parsers.scanner import NotACallError, Steps

_KEY = re.compile(r"[^\s:{}\[\],\"<>]*+")
_BRACKETS = {"{": "}", "[": "]"}
# Python's words, which templates write for these values of JSON, and models after them.
_WORDS = {"None": "null", "True": "true", "False": "false"}


class MarkedValueParser(MarkedToolParser):
    """An object with keys without quotes; its strings are between two words, and may be in JSON too."""

    quote: ClassVar[str]

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._quotes = Markers(self.quote)

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        return CallSyntax(f"{cls.begins[0]}call:{name}{{", f"}}{cls.ends[0]}")

    @classmethod
    def argument_form(cls, tool: Tool) -> Mapping[str, Any]:
        return keywords_form(tool, ":", ",", cls.quote)

    def read_calls(self, marker: str) -> Steps[None]:
        yield from self.text.peek_past_space()
        yield from self.text.expect("call:")
        name = yield from self.text.name()
        if (yield from self.text.peek_past_space()) != "{":
            raise NotACallError
        self.begin_call(name)
        yield from read_nested(self.text, self.found.arguments, _BRACKETS, self._read_key, self._read_leaf)
        yield from self.close()

    def _read_key(self) -> Steps[None]:
        yield from self.text.peek_past_space()
        if not (yield from self._read_marked()):
            is_json = (yield from self.text.peek()) == '"'
            key = (yield from read_string(self.text)) if is_json else (yield from self.text.word(_KEY))
            self.found.arguments(json.dumps(key, ensure_ascii=False))

    def _read_leaf(self) -> Steps[None]:
        if (yield from self._read_marked()):
            return
        if (yield from self.text.peek()) == '"':
            yield from read_value(self.text, self.found.arguments)
        else:
            pieces: list[str] = []
            yield from read_value(self.text, pieces.append)
            word = "".join(pieces)
            self.found.arguments(_WORDS.get(word, word))

    def _read_marked(self) -> Steps[bool]:
        """Reads a string, if one in marks comes next; returns whether it does."""
        if not (yield from self.text.accept(self.quote)):
            return False
        self.found.arguments('"')
        yield from self.text.until(self._quotes, lambda piece: self.found.arguments(json_text(piece)))
        self.found.arguments('"')
        return True


class Gemma4(MarkedValueParser):
    """Gemma 4."""

    begins = ("<|tool_call>",)
    ends = ("<tool_call|>",)
    quote = '<|"|>'
    special_tokens = (*begins, *ends, quote)


class FunctionGemma(MarkedValueParser):
    """FunctionGemma."""

    begins = ("<start_function_call>",)
    ends = ("<end_function_call>",)
    quote = "<escape>"
    special_tokens = (*begins, *ends, quote)
