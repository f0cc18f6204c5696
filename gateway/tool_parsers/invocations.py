"""Calls as elements with attributes: `<invoke name="get_weather"><parameter name="city">Bonn</parameter></invoke>`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from gateway.answers.context import AnswerContext, Tool
from gateway.answers.markers import Markers
from gateway.tool_parsers.argument_forms import elements_form
from gateway.tool_parsers.base import CallSyntax, MarkedToolParser
from gateway.tool_parsers.scanner import Steps
from gateway.tool_parsers.schema_values import NO_STRING, STRING, ArgumentWriter, ParameterTypes

_NAME = re.compile(r"[^\"'<>\n]*+")
_ATTRIBUTES = re.compile(r"[^<>\n]*+")
_CDATA = "<![CDATA["
_CDATA_END = Markers("]]>")


def element(name: str) -> tuple[str, str]:
    """Returns an element's begin tag, up to the attribute `name`, and its end tag."""
    return f"<{name} name=", f"</{name}>"


class InvocationParser(MarkedToolParser):
    """Calls between a pair of tags. Values are text, which is converted to JSON."""

    # The elements of calls and of parameters: up to the name, and the end tag.
    call: ClassVar[tuple[str, str]] = element("invoke")
    parameter: ClassVar[tuple[str, str]] = element("parameter")
    tag_end: ClassVar[str] = ">"
    # Whether a value may be in a CDATA section.
    has_cdata: ClassVar[bool] = False
    # Attributes of a parameter, after its name → the types that they say its value has; otherwise the schema decides.
    types_said: ClassVar[Mapping[str, frozenset[str]]] = MappingProxyType({})

    def __init__(self, context: AnswerContext) -> None:
        super().__init__(context)
        self.types = ParameterTypes(context)
        # A value without an end tag ends where the next element begins.
        self._value_ends = Markers(self.parameter[1], self.parameter[0], self.call[1])

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        (begin, end), before, after = cls.call, cls.begins[0], cls.ends[0]
        return CallSyntax(f'{begin}"{name}"{cls.tag_end}\n', end, f"{before}\n", "\n", f"\n{after}")

    @classmethod
    def argument_form(cls, tool: Tool) -> Mapping[str, Any]:
        begin, end = cls.parameter
        return elements_form(tool, f'{begin}"', f'"{cls.tag_end}', f"{end}\n")

    def read_calls(self, marker: str) -> Steps[None]:
        if marker != self.call[0]:
            yield from self.text.peek_past_space()
            yield from self.text.expect(self.call[0])
        name = yield from self.read_name()
        yield from self._read_attributes()
        self.begin_call(name)
        arguments = ArgumentWriter(self.types, name, self.found.arguments)
        yield from self.read_parameters(name, arguments)
        arguments.close()
        yield from self.close()

    def read_parameters(self, tool: str, arguments: ArgumentWriter) -> Steps[None]:
        """Reads the parameters of a call and its end tag.

        Args:
            tool: the name of the tool.
        """
        following = yield from self._next_element()
        while following == self.parameter[0]:
            following = yield from self._read_parameter(arguments)

    def unescaped(self, name: str) -> str:
        """Returns a name, given how it is written in a tag."""
        return name

    def read_name(self) -> Steps[str]:
        """Reads the name in a tag."""
        quote = yield from self.text.accept('"', "'")
        name = yield from self.text.word(_NAME)
        if quote:
            yield from self.text.expect(quote)
        return self.unescaped(name)

    def _read_attributes(self) -> Steps[str]:
        """Reads the rest of a tag; returns the attributes in it."""
        attributes = yield from self.text.word(_ATTRIBUTES)
        yield from self.text.expect(self.tag_end)
        return attributes.strip()

    def _next_element(self) -> Steps[str]:
        yield from self.text.peek_past_space()
        return (yield from self.text.accept(self.parameter[0], self.call[1]))

    def _read_parameter(self, arguments: ArgumentWriter) -> Steps[str]:
        """Reads the rest of a parameter; returns the element after it."""
        name = yield from self.read_name()
        attributes = yield from self._read_attributes()
        value = arguments.value(name, types=self.types_said.get(attributes))
        if self.has_cdata and (yield from self.text.accept(_CDATA)):
            yield from self.text.until(_CDATA_END, value)
        following = yield from self.text.until(self._value_ends, value)
        value.close()
        return (yield from self._next_element()) if following == self.parameter[1] else following


class MiniMaxM2(InvocationParser):
    """MiniMax-M2. The schema decides the types."""

    begins = ("<minimax:tool_call>", InvocationParser.call[0])
    ends = ("</minimax:tool_call>",)
    special_tokens = ("<minimax:tool_call>", *ends)


class DeepSeekV32(InvocationParser):
    """DeepSeek-V3.2. A parameter says whether it is a string; otherwise, it is JSON."""

    call = element("｜DSML｜invoke")
    parameter = element("｜DSML｜parameter")
    types_said = MappingProxyType({'string="true"': STRING, 'string="false"': NO_STRING})
    begins = ("<｜DSML｜function_calls>", call[0])
    ends = ("</｜DSML｜function_calls>",)
    special_tokens = ("｜DSML｜",)

    @classmethod
    def argument_form(cls, tool: Tool) -> Mapping[str, Any]:
        begin, end = cls.parameter
        return elements_form(tool, f'{begin}"', '" string="true">', f"{end}\n", '" string="false">')


class DeepSeekV4(DeepSeekV32):
    """DeepSeek-V4. Only the element around the calls has another name."""

    begins = ("<｜DSML｜tool_calls>", DeepSeekV32.call[0])
    ends = ("</｜DSML｜tool_calls>",)


class DeepSeekV41(DeepSeekV32):
    """DeepSeek-V4.1, which writes a space in front of the names of all elements."""

    call = element("｜DSML｜ invoke")
    parameter = element("｜DSML｜ parameter")
    begins = ("<｜DSML｜ calls>", call[0])
    ends = ("</｜DSML｜ calls>",)


class Step3(InvocationParser):
    """Step 3: each call is also between tokens, after the kind of call."""

    call = element("steptml:invoke")
    parameter = element("steptml:parameter")
    begins_call = "<｜tool_call_begin｜>"
    kind_end = "<｜tool_sep｜>"
    begins = ("<｜tool_calls_begin｜>", begins_call, call[0])
    ends = ("<｜tool_call_end｜>",)
    dropped = ("<｜tool_calls_end｜>",)
    special_tokens = (*begins[:2], kind_end, *ends, *dropped)

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        begin = f'{cls.begins_call}function{cls.kind_end}{cls.call[0]}"{name}">\n'
        before, after = f"{cls.begins[0]}\n", f"\n{cls.dropped[0]}"
        return CallSyntax(begin, cls.call[1] + cls.ends[0], before, "\n", after)

    def read_calls(self, marker: str) -> Steps[None]:
        if marker == self.begins[0]:
            yield from self.text.peek_past_space()
            yield from self.text.expect(self.begins_call)
        if marker != self.call[0]:
            yield from self.text.name()  # "function", the only kind
            yield from self.text.accept(self.kind_end)
            yield from self.text.name()  # of the tool, which some calls have here too
        yield from super().read_calls(marker)


class MiniCpm5(InvocationParser):
    """MiniCPM5. Values with line breaks and the like are CDATA."""

    # Tokens of its vocabulary; the space that follows the first ones may be part of them.
    call = ("<function", "</function>")
    parameter = ("<param", "</param>")
    has_cdata = True
    begins = (call[0],)
    special_tokens = (*call, *parameter)

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        return CallSyntax(f'{cls.call[0]} name="{name}">', cls.call[1], separator="\n")

    @classmethod
    def argument_form(cls, tool: Tool) -> Mapping[str, Any]:
        begin, end = cls.parameter
        return elements_form(tool, f'{begin} name="', '">', end)

    def read_name(self) -> Steps[str]:
        yield from self.text.peek_past_space()
        yield from self.text.expect("name=")
        return (yield from super().read_name())


class KimiK3(InvocationParser):
    """Kimi K3: tags are between tokens, and name the types. Text for the user is in a channel of its own."""

    call = ("<|open|>call tool=", "<|close|>call<|sep|>")
    parameter = ("<|open|>argument key=", "<|close|>argument<|sep|>")
    tag_end = "<|sep|>"
    types_said = MappingProxyType({
        'type="string"': STRING,
        **{f'type="{kind}"': NO_STRING for kind in ("number", "boolean", "null", "object", "array")},
    })  # fmt: skip
    begins = ("<|open|>tools<|sep|>", call[0])
    ends = ("<|close|>tools<|sep|>",)
    dropped = ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>")
    special_tokens = ("<|open|>", "<|close|>", tag_end)

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        begin = f'{cls.call[0]}"{name}" index="1"{cls.tag_end}'
        return CallSyntax(begin, cls.call[1], cls.begins[0], "", cls.ends[0])

    @classmethod
    def argument_form(cls, tool: Tool) -> Mapping[str, Any]:
        begin, end = cls.parameter
        string, other = (f'" type="{kind}"{cls.tag_end}' for kind in ("string", "{type}"))
        return elements_form(tool, f'{begin}"', string, end, other)

    def unescaped(self, name: str) -> str:
        return name.replace("&quot;", '"').replace("&amp;", "&")
