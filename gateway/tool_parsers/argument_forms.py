"""Structural tag elements for call arguments that are not a single JSON object.

Each parameter is written separately, in the schema's order; parameters that are not required may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.answers.context import Tool
from gateway.tool_parsers.schema_values import referred, types_of

Form = dict[str, Any]
_NOTHING: Form = {"type": "const_string", "value": ""}
_SEPARATOR: Form = {"type": "const_string", "value": ", "}
# If all parameters are optional, the first one written must be among this many.
_MOST_OPTIONAL = 32
_MOST_REFERENCES = 64
# Finds patterns that might match the first character of an end mark.
_ENDLESS = re.compile(r"[<\n]|\[\^|(?<!\\)\.|\\[SWDsnpPxu]|\(\?")


def elements_form(tool: Tool, begin: str, between: str, end: str) -> Form:
    """Parameters written one after the other.

    Args:
        begin, between, end: text before a parameter's name, before its value, and after its value.
    """
    properties, required = _parameters(tool)
    if properties is None:
        pair = _sequence(_text_up_to(between), _text_up_to(end))
        tag: Form = {"type": "tag", "begin": begin, "content": pair, "end": ""}
        return {"type": "tags_with_separator", "tags": [tag], "separator": ""}
    row: list[Form] = []
    for name, schema in properties.items():
        value = _value(tool, schema, end)
        each: Form = {"type": "tag", "begin": f"{begin}{name}{between}", "content": value, "end": end}
        row.append(each if name in required else _perhaps(each))
    return _sequence(*row)


def keywords_form(tool: Tool) -> Form:
    """Parameters as Python keyword arguments, with JSON literals, which the parsers of Python calls accept too."""
    properties, required = _parameters(tool)
    if properties is None:
        word = _sequence({"type": "regex", "pattern": "[A-Za-z_][A-Za-z_0-9]*="}, _json(tool, True))
        tag: Form = {"type": "tag", "begin": "", "content": word, "end": ""}
        return {"type": "tags_with_separator", "tags": [tag], "separator": ", "}
    words = {
        name: _sequence({"type": "const_string", "value": f"{name}="}, _json(tool, schema))
        for name, schema in properties.items()
        if name.isidentifier()
    }
    names, row = list(words), list(words.values())
    first = next((place for place, name in enumerate(names) if name in required), None)
    if first is None:
        starts = range(min(len(row), _MOST_OPTIONAL))
        rows = [_sequence(row[start], *map(_perhaps_further, row[start + 1 :])) for start in starts]
        return {"type": "or", "elements": [*rows, _NOTHING]}
    before = [_perhaps(_sequence(word, _SEPARATOR)) for word in row[:first]]
    after = [(_further if name in required else _perhaps_further)(words[name]) for name in names[first + 1 :]]
    return _sequence(*before, row[first], *after)


def _parameters(tool: Tool) -> tuple[Mapping[str, Any] | None, frozenset[str]]:
    """Returns the parameters with their schemas, None if any are allowed; and the names of the required ones."""
    properties, required = tool.parameters.get("properties"), tool.parameters.get("required")
    if not isinstance(properties, Mapping):
        return (None if tool.parameters.get("type") else {}), frozenset()
    names = required if isinstance(required, list) else ()
    return properties, frozenset(name for name in names if isinstance(name, str))


def _value(tool: Tool, schema: Any, end: str) -> Form:
    """A value as text up to an end mark: strings unquoted, everything else as JSON."""
    if "string" not in types_of(schema, tool.parameters):
        return _json(tool, schema)
    schema = _followed(schema, tool.parameters)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return {"type": "or", "elements": [{"type": "const_string", "value": value} for value in values]}
    pattern = _pattern(schema, end)
    return {"type": "regex", "pattern": pattern} if pattern else {"type": "any_text"}


def _followed(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follows a chain of references to a schema."""
    for _ in range(_MOST_REFERENCES):
        if not isinstance(schema, Mapping):
            return {}
        if not isinstance(reference := schema.get("$ref"), str):
            return schema
        schema = referred(reference, root)
    return {}


def _pattern(schema: Mapping[str, Any], end: str) -> str:
    """Returns a regex for a whole string value; empty if any string is allowed.

    Regexes match greedily: a pattern that could continue into the value's end mark would never let it come, and is left
    out.
    """
    pattern, least, most = schema.get("pattern"), schema.get("minLength", 0), schema.get("maxLength", "")
    other = r"[^<\n]" if end.startswith("\n") else "[^<]"
    if isinstance(pattern, str):
        if _ENDLESS.search(pattern):
            return ""
        before, after = "" if pattern.startswith("^") else f"{other}*", "" if pattern.endswith("$") else f"{other}*"
        return f"{before}({pattern.removeprefix('^').removesuffix('$')}){after}"
    return f"{other}{{{least},{most}}}" if least or most != "" else ""


def _json(tool: Tool, schema: Any) -> Form:
    definitions = {name: tool.parameters[name] for name in ("$defs", "definitions") if name in tool.parameters}
    return {"type": "json_schema", "json_schema": {**schema, **definitions} if isinstance(schema, Mapping) else True}


def _sequence(*elements: Form) -> Form:
    return {"type": "sequence", "elements": list(elements) or [_NOTHING]}


def _text_up_to(end: str) -> Form:
    return {"type": "tag", "begin": "", "content": {"type": "any_text"}, "end": end}


def _further(word: Form) -> Form:
    return _sequence(_SEPARATOR, word)


def _perhaps_further(word: Form) -> Form:
    return _perhaps(_further(word))


def _perhaps(form: Form) -> Form:
    return {"type": "or", "elements": [form, _NOTHING]}
