"""Calls with an element for each value, also inside lists and objects: `<city>Bonn</city><days><item>1</item></days>`.

A mark in front of every tag tells it from text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gateway.answers.context import Tool
from gateway.answers.markers import Markers
from gateway.tool_parsers.argument_forms import elements_form
from gateway.tool_parsers.base import CallSyntax
from gateway.tool_parsers.invocations import InvocationParser
from gateway.tool_parsers.scanner import NotACallError, Sink, Steps
from gateway.tool_parsers.schema_values import STRING, ArgumentWriter, as_json, part_of, types_of

_MARK = "]<]minimax[>["
_TAG = re.compile(r"[^<>\n]*+")
_ITEM = "item"
_NEXT_TAG = Markers(_MARK)


class MiniMaxM3(InvocationParser):
    """MiniMax-M3. The schema decides the types; without one, elements of this name are a list's."""

    call = (f"{_MARK}<invoke name=", f"{_MARK}</invoke>")
    begins = (f"{_MARK}<tool_call>", call[0])
    ends = (f"{_MARK}</tool_call>",)
    special_tokens = (_MARK, "<tool_call>", "</tool_call>")

    @classmethod
    def syntax(cls, name: str) -> CallSyntax:
        return CallSyntax(f'{cls.call[0]}"{name}">', cls.call[1], f"{cls.begins[0]}\n", "\n", f"\n{cls.ends[0]}")

    @classmethod
    def argument_form(cls, tool: Tool) -> Mapping[str, Any]:
        return elements_form(tool, f"{_MARK}<", ">", f"{_MARK}</{{name}}>")

    def read_parameters(self, tool: str, arguments: ArgumentWriter) -> Steps[None]:
        root = self.types.schema(tool)
        while name := (yield from self._read_begin_tag()):
            if self.types.of(tool, name) == STRING:
                value = arguments.value(name)
                yield from self.text.until(Markers(f"{_MARK}</{name}>"), value)
                value.close()
            else:
                arguments.name(name)
                yield from self._read_value(_Element(name, part_of(root, name, root), root))

    def _read_begin_tag(self) -> Steps[str]:
        """Reads the tag that comes next; returns the name in it, empty if it is an end tag or there is none."""
        yield from self.text.peek_past_space()
        tag = (yield from self._read_tag()) if (yield from self.text.accept(_MARK)) else ""
        return "" if tag.startswith("/") else tag

    def _read_tag(self) -> Steps[str]:
        yield from self.text.expect("<")
        tag = yield from self.text.word(_TAG)
        yield from self.text.expect(">")
        return tag

    def _read_value(self, element: _Element) -> Steps[None]:
        """Reads the rest of an element. Nesting costs one list entry per level."""
        sink, open_elements = self.found.arguments, [element]
        while open_elements:
            element, pieces = open_elements[-1], list[str]()
            yield from self.text.until(_NEXT_TAG, pieces.append)
            tag, text = (yield from self._read_tag()), "".join(pieces)
            if tag == f"/{element.name}":
                element.end(text, sink)
                open_elements.pop()
            elif tag.startswith("/") or not tag or text.strip():
                raise NotACallError
            else:
                open_elements.append(element.begin(tag, sink))


class _Element:
    """An element that has begun: a value of its text, or a list or object of the elements in it."""

    def __init__(self, name: str, schema: Any, root: Mapping[str, Any]) -> None:
        """
        Args:
            schema: that of its value; None if unknown.
            root: the schema that references are resolved in.
        """
        self.name = name
        self._schema = schema
        self._root = root
        self._closing = ""  # the bracket that ends the value; empty as long as there is no element in it

    def begin(self, name: str, sink: Sink) -> _Element:
        """Returns an element that begins in this one; passes on the JSON up to its value."""
        if self._closing:
            sink(", ")
        else:
            is_list = self._is_list(name)
            self._closing = "]" if is_list else "}"
            sink("[" if is_list else "{")
        if self._closing == "]":
            return _Element(name, part_of(self._schema, None, self._root), self._root)
        sink(f"{json.dumps(name, ensure_ascii=False)}: ")
        return _Element(name, part_of(self._schema, name, self._root), self._root)

    def end(self, text: str, sink: Sink) -> None:
        """Ends the element; passes on the rest of its JSON.

        Args:
            text: what comes before its end tag.

        Raises:
            NotACallError: text follows elements.
        """
        if self._closing:
            if text.strip():
                raise NotACallError
            sink(self._closing)
            return
        types = types_of(self._schema, self._root)
        if not text.strip() and "string" not in types and types & {"array", "object"}:
            sink("[]" if "array" in types else "{}")
        else:
            sink(as_json(text, types))

    def _is_list(self, first: str) -> bool:
        types = types_of(self._schema, self._root) & {"array", "object"}
        return first == _ITEM if len(types) != 1 else "array" in types
