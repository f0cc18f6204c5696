"""Calls between special tokens: a name, a token, and arguments as JSON."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from typing import ClassVar

from gateway.answers.context import AnswerContext
from gateway.tool_parsers.base import CallSyntax, MarkedToolParser
from gateway.tool_parsers.json_calls import read_bare_arguments
from gateway.tool_parsers.scanner import Steps


class TokenBlockParser(MarkedToolParser):
    """`section`, then for each call `begins_call`, its head, its arguments and its end mark."""

    section: ClassVar[str]
    begins_call: ClassVar[str]

    def read_calls(self, marker: str) -> Steps[None]:
        if marker == self.section:
            yield from self.text.peek_past_space()
            yield from self.text.expect(self.begins_call)
        yield from self.read_head()
        yield from read_bare_arguments(self.text, self.found.arguments)
        yield from self.close()

    @abstractmethod
    def read_head(self) -> Steps[None]:
        """Reads up to the arguments, and begins the call.

        Raises:
            NotACallError: there is no valid head.
        """


class DeepSeekV3(TokenBlockParser):
    """DeepSeek-V3 and R1: the kind of call, the name, and JSON in a code block."""

    section = "<｜tool▁calls▁begin｜>"
    begins_call = "<｜tool▁call▁begin｜>"
    begins = (section, begins_call)
    ends = ("```<｜tool▁call▁end｜>", "```\n<｜tool▁call▁end｜>", "<｜tool▁call▁end｜>")
    dropped = ("<｜tool▁calls▁end｜>",)
    special_tokens = (section, begins_call, "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", *dropped)

    def read_head(self) -> Steps[None]:
        yield from self.text.name()  # "function", the only kind
        yield from self.text.expect("<｜tool▁sep｜>")
        name = yield from self.text.name()
        yield from self.text.peek_past_space()
        yield from self.text.expect("```json")
        self.begin_call(name)

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        head = f"{cls.begins_call}function<｜tool▁sep｜>{name}\n```json\n"
        return CallSyntax(head, "\n```<｜tool▁call▁end｜>", cls.section, "\n", "<｜tool▁calls▁end｜>")


class DeepSeekV31(TokenBlockParser):
    """DeepSeek-V3.1: the name and JSON."""

    section = DeepSeekV3.section
    begins_call = DeepSeekV3.begins_call
    begins = (section, begins_call)
    ends = ("<｜tool▁call▁end｜>",)
    dropped = DeepSeekV3.dropped
    special_tokens = DeepSeekV3.special_tokens

    def read_head(self) -> Steps[None]:
        name = yield from self.text.name()
        yield from self.text.peek_past_space()
        yield from self.text.expect("<｜tool▁sep｜>")
        self.begin_call(name)

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        head = f"{cls.begins_call}{name}<｜tool▁sep｜>"
        return CallSyntax(head, "<｜tool▁call▁end｜>", cls.section, "", "<｜tool▁calls▁end｜>")


class KimiK2(TokenBlockParser):
    """Kimi K2: the call's id, written by the model and containing the name, and JSON."""

    section = "<|tool_calls_section_begin|>"
    begins_call = "<|tool_call_begin|>"
    begins = (section, begins_call)
    ends = ("<|tool_call_end|>",)
    dropped = ("<|tool_calls_section_end|>",)
    special_tokens = (*begins, "<|tool_call_argument_begin|>", *ends, *dropped)

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self._ids = set[str]()

    def read_head(self) -> Steps[None]:
        call_id = yield from self.text.name()
        yield from self.text.peek_past_space()
        yield from self.text.expect("<|tool_call_argument_begin|>")
        name, _, number = call_id.rpartition(":")
        is_id = bool(name) and number.isdecimal() and call_id not in self._ids
        self._ids.add(call_id)
        self.begin_call((name or call_id).removeprefix("functions."), call_id if is_id else "")

    def new_id(self, name: str) -> str:
        numbers = itertools.count(self.found.num_calls)
        call_id = next(each for number in numbers if (each := f"functions.{name}:{number}") not in self._ids)
        self._ids.add(call_id)
        return call_id

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        head = f"{cls.begins_call}functions.{name}:0<|tool_call_argument_begin|>"
        return CallSyntax(head, "<|tool_call_end|>", cls.section, "", "<|tool_calls_section_end|>")
