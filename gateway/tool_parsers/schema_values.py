"""Converts arguments that a model writes as text to JSON, according to the tool's schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from gateway.answers.context import AnswerContext
from gateway.tool_parsers.python_values import json_text, read_literal
from gateway.tool_parsers.scanner import EndOfTextError, NotACallError, Scanner, Sink

_MOST_SCHEMAS = 64
_COMBINED = ("anyOf", "oneOf", "allOf")
STRING = frozenset({"string"})
NO_STRING = frozenset({"number", "integer", "boolean", "null", "object", "array"})
_ANY = STRING | NO_STRING
_NULLS = ("null", "None")
_BOOLEANS = {"true": "true", "false": "false", "True": "true", "False": "false"}
_decoder = msgspec.json.Decoder(msgspec.Raw)


class ParameterTypes:
    """The JSON types that tool parameters may have, computed once for each parameter used."""

    def __init__(self, context: AnswerContext) -> None:
        self._tools = {tool.name: tool for tool in context.tools}
        self._known: dict[tuple[str, str], frozenset[str]] = {}

    def schema(self, tool: str) -> Mapping[str, Any]:
        """Returns the schema of a tool's parameters; an empty one if the request has no such tool."""
        return self._tools[tool].parameters if tool in self._tools else {}

    def of(self, tool: str, parameter: str) -> frozenset[str]:
        """Returns the types of a parameter; all types if the request does not specify any."""
        schema = self.schema(tool)
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or parameter not in properties:
            return _ANY
        if (tool, parameter) not in self._known:
            self._known[tool, parameter] = types_of(properties[parameter], schema)
        return self._known[tool, parameter]


def types_of(schema: Any, root: Mapping[str, Any]) -> frozenset[str]:
    """Returns the JSON types that a schema allows.

    Args:
        root: the schema that references are resolved in.
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
    """Returns the types that a schema names, and subschemas to look at further."""
    if not isinstance(schema, Mapping):
        return _ANY, []
    declared, values = schema.get("type"), schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(declared, str):
        return frozenset({declared}), []
    if isinstance(declared, list):
        return frozenset(each for each in declared if isinstance(each, str)), []
    if isinstance(reference := schema.get("$ref"), str):
        return frozenset(), [referred(reference, root)]
    for word in _COMBINED:
        if isinstance(options := schema.get(word), list):
            return frozenset(), options[:_MOST_SCHEMAS]
    if isinstance(values, list) and all(isinstance(value, str) for value in values):
        return frozenset({"string"}), []
    return _ANY, []


def referred(reference: str, root: Mapping[str, Any]) -> Any:
    """Resolves a reference; None if it leads nowhere."""
    found: Any = root
    for name in reference.removeprefix("#/").split("/"):
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def part_of(schema: Any, name: str | None, root: Mapping[str, Any]) -> Any:
    """Returns the schema of a member of objects, or, without a name, of lists' items; None if the schema has none.

    Args:
        root: the schema that references are resolved in.
    """
    pending = [schema]
    for _ in range(_MOST_SCHEMAS):
        if not pending:
            break
        each = pending.pop()
        if not isinstance(each, Mapping):
            continue
        properties = each.get("properties")
        known = properties if isinstance(properties, Mapping) else {}
        found = each.get("items") if name is None else known.get(name, each.get("additionalProperties"))
        if isinstance(found, Mapping):
            return found
        if isinstance(reference := each.get("$ref"), str):
            pending.append(referred(reference, root))
        for word in _COMBINED:
            if isinstance(options := each.get(word), list):
                pending += options[:_MOST_SCHEMAS]
    return None


def as_json(text: str, types: frozenset[str]) -> str:
    """Converts text to a JSON value of the first type that fits among those allowed; otherwise to a string."""
    word = text.strip()
    if word in _NULLS and "null" in types:
        return "null"
    if types <= {"string", "null"}:
        return f'"{json_text(text)}"'
    if word in _BOOLEANS and "boolean" in types:
        return _BOOLEANS[word]
    return _own_json(word, types) or _from_python(word, types) or f'"{json_text(text)}"'


def _own_json(word: str, types: frozenset[str]) -> str:
    """Returns the text if it is JSON, unless it could be meant as a string instead; otherwise empty."""
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
    """Converts Python lists and dicts; empty if it is neither."""
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
    """Writes a call's arguments one by one as a JSON object."""

    def __init__(self, types: ParameterTypes, tool: str, sink: Sink) -> None:
        """
        Args:
            sink: receives the object's text, piece by piece.
        """
        self._types = types
        self._tool = tool
        self._sink = sink
        self._separator = "{"

    def value(self, name: str, line_break: str = "", types: frozenset[str] | None = None) -> Value:
        """Begins the next parameter; returns its value to fill and close.

        Args:
            line_break: removed once from the beginning and once from the end of the value's text.
            types: JSON types that it may have; by default, those that the tool's schema allows.
        """
        self.name(name)
        return Value(self._types.of(self._tool, name) if types is None else types, line_break, self._sink)

    def name(self, name: str) -> None:
        """Begins the next parameter, whose value goes to the sink as JSON."""
        self._sink(f"{self._separator}{json.dumps(name, ensure_ascii=False)}: ")
        self._separator = ", "

    def close(self) -> None:
        """Ends the object."""
        self._sink("{}" if self._separator == "{" else "}")


class Value:
    """Receives the text of a value. A value that must be a string is streamed; any other is converted when complete."""

    def __init__(self, types: frozenset[str], line_break: str, sink: Sink) -> None:
        self._types = types
        self._break = line_break
        self._sink = sink
        self._streams = types == STRING
        self._begun = False
        self._waiting = ""  # a line break that may be the final one
        self._pieces: list[str] = []
        if self._streams:
            sink('"')

    def __call__(self, text: str) -> None:
        """Adds text."""
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
        """Ends the value."""
        self._sink('"' if self._streams else as_json("".join(self._pieces), self._types))
