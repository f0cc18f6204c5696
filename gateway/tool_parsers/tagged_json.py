"""JSON in tags: `<tool_call>{"name": …, "arguments": …}</tool_call>`, with one or several calls per tag."""

from __future__ import annotations

from gateway.tool_parsers.base import CallSyntax
from gateway.tool_parsers.json_calls import JsonCallParser
from gateway.tool_parsers.scanner import NotACallError, Steps


class TaggedJsonParser(JsonCallParser):
    """Objects between tags, or after a word without an end tag."""

    def read_calls(self, marker: str) -> Steps[None]:
        if (yield from self.text.peek_past_space()) != "{":
            raise NotACallError
        yield from self.read_object(marker)
        self.text.hold()
        while self.ends and (yield from self.text.peek_past_space()) == "{":
            yield from self.read_object(marker)
            self.text.hold()
        yield from self.close()

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        call = cls.object_syntax(name)
        return CallSyntax(f"{cls.begins[0]}\n{call.begin}", f"{call.end}\n{''.join(cls.ends[:1])}", separator="\n")


class Hermes(TaggedJsonParser):
    """The format of Hermes 2 and 3, Qwen 2.5, Qwen 3, Granite 4 and ERNIE 4.5."""

    begins = ("<tool_call>",)
    ends = ("</tool_call>",)
    special_tokens = begins + ends


class LongCat(TaggedJsonParser):
    """LongCat-Flash."""

    begins = ("<longcat_tool_call>",)
    ends = ("</longcat_tool_call>",)
    special_tokens = begins + ends


class Granite20bFunctionCalling(TaggedJsonParser):
    """Calls have no end mark; the next one may follow immediately."""

    begins = special_tokens = ("<function_call>",)

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        call = cls.object_syntax(name)
        return CallSyntax(f"<function_call> {call.begin}", call.end)


class InternLm(TaggedJsonParser):
    """InternLM 2.5: an action of its plugin role."""

    begins = ("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>")
    ends = ("<|action_end|>",)
    special_tokens = ("<|action_start|>", "<|plugin|>", "<|action_end|>")

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        call = cls.object_syntax(name)
        return CallSyntax(f"<|action_start|><|plugin|>\n{call.begin}", f"{call.end}<|action_end|>")


class MiniMax(TaggedJsonParser):
    """MiniMax-M1: one call per line, all between one pair of tags."""

    begins = ("<tool_calls>",)
    ends = ("</tool_calls>",)
    special_tokens = begins + ends

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        call = cls.object_syntax(name)
        return CallSyntax(call.begin, call.end, "<tool_calls>\n", "\n", "\n</tool_calls>")


class GigaChat3(TaggedJsonParser):
    """Calls are in a message of their own, from another role."""

    begins = ("function call<|role_sep|>", "<|function_call|>")
    ends = dropped = ("<|message_sep|>",)
    special_tokens = ("<|role_sep|>", "<|message_sep|>", "<|function_call|>")

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        call = cls.object_syntax(name)
        return CallSyntax(f"function call<|role_sep|>\n{call.begin}", call.end, before="<|message_sep|>\n\n")
