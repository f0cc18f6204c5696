"""Structural tag elements for call arguments that are not a single JSON object.

Each parameter is written separately, in the schema's order; parameters that are not required may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from gateway.answers.context import Tool
from gateway.tool_parsers.schema_values import NO_STRING, STRING, referred, types_of

Form = dict[str, Any]
_NOTHING: Form = {"type": "const_string", "value": ""}
# A parameter's name, up to the rest of its element; a slash would begin an end tag.
_ANY_NAME: Form = {"type": "regex", "pattern": r"""[^"'<>\n/][^"'<>\n]*"""}
# If all parameters are optional, the first one written must be among this many.
_MOST_OPTIONAL = 32
_MOST_REFERENCES = 64
# What end marks begin with besides `<` → how it is written in a regex.
_ESCAPED = {"\n": r"\n", "]": r"\]"}
# Finds patterns that might match the first character of an end mark.
_ENDLESS = re.compile(r"[<\n]|\[\^|(?<!\\)\.|\\[SWDsnpPxu]|\(\?")


def elements_form(tool: Tool, begin: str, between: str, end: str, between_json: str = "") -> Form:
    """Parameters written one after the other.

    Args:
        begin, between, end: text before a parameter's name, before its value, and after its value; `{name}` in `end`
            stands for the parameter's name.
        between_json: in place of `between` if the value is JSON rather than the text of a string; empty if there is no
            difference. `{type}` in it stands for the value's type, where integers are numbers.
    """
    properties, required = _parameters(tool)
    if properties is None:
        ways = [between, *_with_types(between_json, NO_STRING)]
        after = [_text_up_to(each) for each in end.split("{name}")]
        pairs = [_sequence(_ANY_NAME, _constant(way), *after) for way in ways]
        tag: Form = {"type": "tag", "begin": begin, "content": _either(pairs), "end": ""}
        return {"type": "tags_with_separator", "tags": [tag], "separator": ""}
    row: list[Form] = []
    for name, schema in properties.items():
        last = end.replace("{name}", name)
        texts, others = _forms_of(tool, schema, last) if between_json else ([_value(tool, schema, last)], [])
        ways = _with_types(between_json, types_of(schema, tool.parameters) - STRING or NO_STRING)
        each = _either(
            [_tag(f"{begin}{name}{between}", text, last) for text in texts]
            + [_tag(f"{begin}{name}{way}", other, last) for other in others for way in ways]
        )
        row.append(each if name in required else _perhaps(each))
    return _sequence(*row)


def _with_types(text: str, types: frozenset[str]) -> list[str]:
    """Returns the text, once for each of the types if it has a place for them; nothing if it is empty."""
    names = sorted("number" if each == "integer" else each for each in types)
    return list(dict.fromkeys(text.replace("{type}", name) for name in names)) if text else []


def keywords_form(tool: Tool, sign: str = "=", separator: str = ", ", quote: str = "") -> Form:
    """Parameters as Python keyword arguments, with JSON literals, which the parsers of Python calls accept too.

    Args:
        sign: between a parameter's name and its value.
        separator: between parameters.
        quote: in place of the quotation marks around a string that is not inside a list or an object.
    """
    properties, required = _parameters(tool)
    if properties is None:
        name = {"type": "regex", "pattern": f"[A-Za-z_][A-Za-z_0-9]*{sign}"}
        tag = _tag("", _sequence(name, _quoted(tool, True, quote)), "")
        return {"type": "tags_with_separator", "tags": [tag], "separator": separator}
    words = {
        name: _sequence(_constant(f"{name}{sign}"), _quoted(tool, schema, quote))
        for name, schema in properties.items()
        if name.isidentifier()
    }
    further = {name: _sequence(_constant(separator), word) for name, word in words.items()}
    names, row = list(words), list(words.values())
    first = next((place for place, name in enumerate(names) if name in required), None)
    if first is None:
        starts = range(min(len(row), _MOST_OPTIONAL))
        rows = [_sequence(row[start], *(_perhaps(further[name]) for name in names[start + 1 :])) for start in starts]
        return {"type": "or", "elements": [*rows, _NOTHING]}
    before = [_perhaps(_sequence(word, _constant(separator))) for word in row[:first]]
    after = [further[name] if name in required else _perhaps(further[name]) for name in names[first + 1 :]]
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
        return {"type": "or", "elements": [_constant(value) for value in values]}
    pattern = _pattern(schema, end)
    return {"type": "regex", "pattern": pattern} if pattern else {"type": "any_text"}


def _forms_of(tool: Tool, schema: Any, end: str) -> tuple[list[Form], list[Form]]:
    """Returns the forms of a value as the text of a string, and as JSON; one of them may be impossible."""
    types = types_of(schema, tool.parameters)
    texts = [_value(tool, schema, end)] if "string" in types else []
    return texts, [] if types == STRING else [_json(tool, schema)]


def _quoted(tool: Tool, schema: Any, quote: str) -> Form:
    """A string between quotes of this kind, if there are any; everything else as JSON."""
    if not quote:
        return _json(tool, schema)
    texts, others = _forms_of(tool, schema, quote)
    return _either([*(_tag(quote, text, quote) for text in texts), *others])


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
    other = f"[^<{_ESCAPED.get(end[:1], '')}]"
    if isinstance(pattern, str):
        if _ENDLESS.search(pattern) or (end.startswith("]") and r"\]" in pattern):
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
    return _tag("", {"type": "any_text"}, end)


def _constant(text: str) -> Form:
    return {"type": "const_string", "value": text}


def _tag(begin: str, content: Form, end: str) -> Form:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def _either(forms: list[Form]) -> Form:
    return forms[0] if len(forms) == 1 else {"type": "or", "elements": forms}


def _perhaps(form: Form) -> Form:
    return {"type": "or", "elements": [form, _NOTHING]}
