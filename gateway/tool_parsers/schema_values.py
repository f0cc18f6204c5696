"""Arguments that a model writes as text, made JSON by what the tool's schema says of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.answers.context import AnswerContext
from gateway.tool_parsers.python_values import json_text, read_literal
from gateway.tool_parsers.scanner import EndOfTextError, NotACallError, Scanner, Sink

_MOST_SCHEMAS = 64
_ANY = frozenset({"string", "number", "integer", "boolean", "null", "object", "array"})
_NULLS = ("null", "None")
_BOOLEANS = {"true": "true", "false": "false", "True": "true", "False": "false"}
_decoder = msgspec.json.Decoder(msgspec.Raw)


class ParameterTypes:
    """The JSON types that the parameters of a request's tools may have, worked out once for each that is asked for."""

    def __init__(self, context: AnswerContext) -> None:
        self._tools = {tool.name: tool for tool in context.tools}
        self._known: dict[tuple[str, str], frozenset[str]] = {}

    def of(self, tool: str, parameter: str) -> frozenset[str]:
        """All types where the request does not say."""
        schema = self._tools[tool].parameters if tool in self._tools else {}
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or parameter not in properties:
            return _ANY
        if (tool, parameter) not in self._known:
            self._known[tool, parameter] = types_of(properties[parameter], schema)
        return self._known[tool, parameter]


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """The JSON types that a schema allows.

    Args:
        root: what its references are into.
    """
    pending, found = [schema], frozenset[str]()
    for _ in range(_MOST_SCHEMAS):
        if not pending:
            return found
        types, further = _look_at(pending.pop(), root)
        found |= types
        pending += further
    return _ANY


def _look_at(schema: Any, root: Mapping[str, Any]) -> tuple[frozenset[str], list[Any]]:
    """(types that a schema names, schemas of which each names more)."""
    if not isinstance(schema, Mapping):
        return _ANY, []
    declared, values = schema.get("type"), schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(declared, str):
        return frozenset({declared}), []
    if isinstance(declared, list):
        return frozenset(each for each in declared if isinstance(each, str)), []
    if isinstance(reference := schema.get("$ref"), str):
        return frozenset(), [referred(reference, root)]
    for word in ("anyOf", "oneOf", "allOf"):
        if isinstance(options := schema.get(word), list):
            return frozenset(), options[:_MOST_SCHEMAS]
    if isinstance(values, list) and all(isinstance(value, str) for value in values):
        return frozenset({"string"}), []
    return _ANY, []


def referred(reference: str, root: Mapping[str, Any]) -> Any:
    """The schema that a reference names; None if there is none."""
    found: Any = root
    for name in reference.removeprefix("#/").split("/"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def as_json(text: str, types: frozenset[str]) -> str:
    """The value that a text stands for: of the types that it may have, the first that fits; else a string."""
    word = text.strip()
    if word in _NULLS and "null" in types:
        return "null"
    if types <= {"string", "null"}:
        return f'"{json_text(text)}"'
    if word in _BOOLEANS and "boolean" in types:
        return _BOOLEANS[word]
    return _own_json(word, types) or _from_python(word, types) or f'"{json_text(text)}"'


def _own_json(word: str, types: frozenset[str]) -> str:
    """A JSON value as it is written, unless it is one of a type that a string may be meant by."""
    try:
        _decoder.decode(word)
    except (ValueError, RecursionError):
        return ""
    return word if "string" not in types or types & _types_of_json(word) else ""


def _types_of_json(word: str) -> frozenset[str]:
    kinds = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
    if kind := kinds.get(word[0]):
        return frozenset({kind})
    return frozenset({"number"} if set(word) & set(".eE") else {"number", "integer"})


def _from_python(word: str, types: frozenset[str]) -> str:
    """Lists and dicts as Python writes them."""
    if word[:1] not in ("{", "[", "(") or not types & {"object", "array"}:
        return ""
    scanner, pieces = Scanner(), list[str]()
    scanner.feed(word)
    scanner.end()
    try:
        for _ in read_literal(scanner, pieces.append):
            return ""
    except (NotACallError, EndOfTextError):
        return ""
    return "" if scanner.rest() else "".join(pieces)


class ArgumentWriter:
    """Writes a call's arguments, one parameter after the other: a JSON object."""

    def __init__(self, types: ParameterTypes, tool: str, sink: Sink) -> None:
        """
        Args:
            sink: takes the object's text, piece by piece.
        """
        self._types = types
        self._tool = tool
        self._sink = sink
        self._separator = "{"

    def value(self, name: str, line_break: str = "") -> Value:
        """A further parameter's value, to be filled and closed.

        Args:
            line_break: one at the beginning of the text and one at its end are no part of the value.
        """
        self._sink(f"{self._separator}{json.dumps(name, ensure_ascii=False)}: ")
        self._separator = ", "
        return Value(self._types.of(self._tool, name), line_break, self._sink)

    def close(self) -> None:
        """No more comes."""
        self._sink("{}" if self._separator == "{" else "}")


class Value:
    """Takes the text of a value. A string goes out as it comes; what may be anything else, when it is whole."""

    def __init__(self, types: frozenset[str], line_break: str, sink: Sink) -> None:
        self._types = types
        self._break = line_break
        self._sink = sink
        self._streams = types == {"string"}
        self._begun = False
        self._waiting = ""  # a line break that may be the last
        self._pieces: list[str] = []
        if self._streams:
            sink('"')

    def __call__(self, text: str) -> None:
        """More of it."""
        if self._break:
            text = self._waiting + (text if self._begun else text.removeprefix(self._break))
            self._waiting = self._break if text.endswith(self._break) else ""
            text = text.removesuffix(self._break)
            self._begun = True
        if not self._streams:
            self._pieces.append(text)
        elif text:
            self._sink(json_text(text))

    def close(self) -> None:
        """It is whole."""
        self._sink('"' if self._streams else as_json("".join(self._pieces), self._types))
