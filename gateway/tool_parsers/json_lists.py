"""A JSON list of calls: `[{"name": …, "arguments": …}, …]`, after a word, in tags, or at the beginning of the text."""

from __future__ import annotations

from gateway.tool_parsers.base import CallSyntax
from gateway.tool_parsers.json_calls import JsonCallParser
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
    """Jamba, Hunyuan-A13B."""

    begins = ("<tool_calls>",)
    ends = ("</tool_calls>",)
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
