"""A JSON list of calls: `[{"name": …, "arguments": …}, …]`, after a word, in tags, or at the beginning of the text."""

from __future__ import annotations

import json

from gateway.tool_parsers.base import CallSyntax, MarkedToolParser
from gateway.tool_parsers.json_calls import JsonCallParser, read_bare_arguments
from gateway.tool_parsers.json_text import read_string
from gateway.tool_parsers.scanner import NotACallError, Steps


class JsonListParser(JsonCallParser):
    """Parses the list. A model that should write a list but makes a single call may leave out the brackets."""

    def read_calls(self, marker: str) -> Steps[None]:
        following = yield from self.text.peek_past_space()
        if following == "[":
            yield from self.read_list(marker)
        elif following == "{":
            yield from self.read_object(marker)
        else:
            raise NotACallError
        yield from self.close()

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        call = cls.object_syntax(name)
        before, after = (*cls.begins[:1], "")[0], (*cls.ends[:1], "")[0]
        return CallSyntax(call.begin, call.end, f"{before}[", ", ", f"]{after}")


class TaggedListParser(JsonListParser):
    """Jamba, Hunyuan-A13B, Apriel."""

    begins = ("<tool_calls>",)
    ends = ("</tool_calls>",)
    special_tokens = begins + ends


class Nemotron(JsonListParser):
    """Nemotron Nano 2 and Llama Nemotron."""

    begins = ("<TOOLCALL>",)
    ends = ("</TOOLCALL>",)
    special_tokens = begins + ends


class Granite(JsonListParser):
    """Granite 3: version 3.0 has a token before the list, 3.1 a word."""

    begins = ("<|tool_call|>", "<tool_call>")
    ends = ("</tool_call>",)
    bare = "["
    special_tokens = begins + ends

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        call = cls.object_syntax(name)
        return CallSyntax(call.begin, call.end, "<|tool_call|>[", ", ", "]")


class Phi4Mini(JsonListParser):
    """Phi-4-mini: the word `functools`, or a token in templates that have one."""

    begins = ("functools", "<|tool_call|>")
    ends = ("<|/tool_call|>",)
    special_tokens = ("<|tool_call|>", "<|/tool_call|>")

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        call = cls.object_syntax(name)
        return CallSyntax(call.begin, call.end, "functools[", ", ", "]")


class Cohere(JsonListParser):
    """Command R7B and Command A: the list is an action, which may come after a plan (the reasoning)."""

    begins = ("<|START_ACTION|>",)
    ends = ("<|END_ACTION|>",)
    special_tokens = begins + ends
    name_key = "tool_name"
    arguments_key = "parameters"

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        call = cls.object_syntax(name)
        begin = f'    {{"tool_call_id": "0", {call.begin.removeprefix("{")}'
        return CallSyntax(begin, call.end, f"{cls.begins[0]}[\n", ",\n", f"\n]{cls.ends[0]}")


class Apertus(MarkedToolParser):
    """Apertus: a list of objects with one member each, the name of a tool and its arguments."""

    begins = ("<|tools_prefix|>",)
    ends = ("<|tools_suffix|>",)
    special_tokens = begins + ends

    def read_calls(self, marker: str) -> Steps[None]:
        yield from self.text.peek_past_space()
        yield from self.text.expect("[")
        while (following := (yield from self.text.peek_past_space())) != "]":
            if following == ",":
                self.text.take(1)
            else:
                yield from self._read_call()
        self.text.take(1)
        if self.text.holds:  # no call at all
            raise NotACallError
        yield from self.close()

    def _read_call(self) -> Steps[None]:
        yield from self.text.expect("{")
        yield from self.text.peek_past_space()
        name = yield from read_string(self.text)
        yield from self.text.peek_past_space()
        yield from self.text.expect(":")
        self.begin_call(name)
        yield from read_bare_arguments(self.text, self.found.arguments)
        yield from self.text.peek_past_space()
        yield from self.text.expect("}")

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        begin = f"{{{json.dumps(name, ensure_ascii=False)}: "
        return CallSyntax(begin, "}", f"{cls.begins[0]}[", ", ", f"]{cls.ends[0]}")


class XLam(JsonListParser):
    """xLAM: the list alone, or with what related models put around it."""

    begins = ("```json", "```", "<tool_call>", "[TOOL_CALLS]")
    ends = ("```", "</tool_call>")
    bare = "["
    doubtful = ("", "```json", "```")
    special_tokens = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]")

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        call = cls.object_syntax(name)
        return CallSyntax(call.begin, call.end, "[", ", ", "]")
