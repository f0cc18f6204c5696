"""Writes structural tags as grammars for llguidance: free text, parts of which follow a format of their own.

A tag is a tree in the format of XGrammar and its successors (`format`): texts, schemas and regular expressions, in
sequence, as alternatives, between a begin and an end marker, or after a trigger in free text. The older `structures`
and `triggers` are converted to such a tree.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_MOST_DEPTH = 16
_TEXT = r"TEXT: /(.|\n)*/"
# Characters that would end a regular expression in the grammar, with their escapes; escaped ones stay as they are.
_DELIMITERS = re.compile(r"\\.|/|\n", re.DOTALL)
_ESCAPED = {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}

SchemaText = Callable[[dict[str, Any] | bool], str]


class TagGrammar:
    """Writes one structural tag as rules in Lark's notation."""

    def __init__(self, special_tokens: Mapping[str, int], schema_text: SchemaText) -> None:
        """
        Args:
            special_tokens: text → id; in a fixed text, the token may stand for its text.
            schema_text: formats a JSON schema for the grammar.
        """
        self._special_tokens = special_tokens
        self._special = re.compile("|".join(map(re.escape, sorted(special_tokens, key=len, reverse=True))) or r"(?!)")
        self._schema_text = schema_text
        self._rules: list[str] = []

    def write(self, tag: Any) -> str:
        """Writes the grammar.

        Raises:
            ValueError: the tag is malformed; the message says where.
            NotImplementedError: it has element types that only other servers support.
        """
        if not isinstance(tag, dict):
            raise ValueError("a structural tag must be an object")
        tree = _from_structures(tag) if "structures" in tag else tag.get("format")
        start = self._element(tree, "format", 0)
        return "\n".join(["%llguidance {}", f"start: {start}", *self._rules, _TEXT])

    def _element(self, element: Any, place: str, depth: int) -> str:
        """Adds the rules of an element; returns the name to use in other rules."""
        kind = element.get("type") if isinstance(element, dict) else None
        if depth > _MOST_DEPTH:
            raise ValueError(f"{place} is nested more than {_MOST_DEPTH} levels deep")
        writer = _WRITERS.get(kind) if isinstance(kind, str) else None
        if writer is None:
            if kind in _ELSEWHERE:
                raise NotImplementedError(f"{place}.type {kind}")
            raise ValueError(f"{place}.type is {str(kind)[:50]!r}; it must be one of {', '.join(_WRITERS)}")
        return writer(self, element, place, depth)

    def _rule(self, body: str, attributes: str = "") -> str:
        name = f"part_{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def _literal(self, text: str) -> str:
        """A fixed text in which special tokens may also be generated as such."""
        parts, at = [], 0
        for found in self._special.finditer(text):
            if found.start() > at:
                parts.append(json.dumps(text[at : found.start()]))
            parts.append(f"(<[{self._special_tokens[found.group()]}]> | {json.dumps(found.group())})")
            at = found.end()
        if at < len(text):
            parts.append(json.dumps(text[at:]))
        return " ".join(parts) or '""'

    def _const(self, element: Mapping[str, Any], place: str, depth: int) -> str:
        return self._rule(self._literal(_string(element, "value", place)))

    def _schema(self, element: Mapping[str, Any], place: str, depth: int) -> str:
        schema = element.get("json_schema")
        if not isinstance(schema, dict | bool):
            raise ValueError(f"{place}.json_schema is not a JSON schema")
        return self._rule(f"%json {self._schema_text(schema)}")

    def _regex(self, element: Mapping[str, Any], place: str, depth: int) -> str:
        pattern = _string(element, "pattern", place)
        return self._rule(f"/{_DELIMITERS.sub(lambda found: _ESCAPED.get(found.group(), found.group()), pattern)}/")

    def _any_text(self, element: Mapping[str, Any], place: str, depth: int) -> str:
        return self._rule("TEXT")

    def _sequence(self, element: Mapping[str, Any], place: str, depth: int) -> str:
        return self._rule(" ".join(self._elements(element, "elements", place, depth)))

    def _or(self, element: Mapping[str, Any], place: str, depth: int) -> str:
        return self._rule(" | ".join(self._elements(element, "elements", place, depth)))

    def _elements(self, element: Mapping[str, Any], key: str, place: str, depth: int) -> list[str]:
        return [
            self._element(each, f"{place}.{key}[{index}]", depth + 1)
            for index, each in enumerate(_list(element, key, place))
        ]

    def _tag(self, element: Mapping[str, Any], place: str, depth: int) -> str:
        return self._rule(self._tag_from(element, place, depth, ""))

    def _tag_from(self, element: Mapping[str, Any], place: str, depth: int, begun: str) -> str:
        """A tag whose beginning has been generated already, as far as `begun`."""
        begin, end = (_string(element, key, place) for key in ("begin", "end"))
        rest, content = begin[len(begun) :], element.get("content")
        parts = [self._literal(rest)] if rest else []
        if end and isinstance(content, dict) and content.get("type") == "any_text":
            return " ".join([*parts, self._text_up_to(end)])
        parts.append(self._element(content, f"{place}.content", depth + 1))
        return " ".join([*parts, self._literal(end)] if end else parts)

    def _text_up_to(self, word: str) -> str:
        """Free text up to and including the first occurrence of this word."""
        lazy = self._rule(f"TEXT {json.dumps(word)}", "[lazy]")
        if word not in self._special_tokens:
            return lazy
        return self._rule(f"{lazy} | TEXT <[{self._special_tokens[word]}]>")

    def _triggered(self, element: Mapping[str, Any], place: str, depth: int) -> str:
        """Free text up to a trigger, followed by a tag that begins with it."""
        tags = _tags(element, place)
        triggered = []
        for index, trigger in enumerate(_list(element, "triggers", place)):
            if not isinstance(trigger, str) or not trigger:
                raise ValueError(f"{place}.triggers[{index}] must be a non-empty string")
            begun = [(number, tag) for number, tag in tags if tag["begin"].startswith(trigger)]
            tags = [each for each in tags if each not in begun]
            if begun:
                rests = (self._tag_from(tag, f"{place}.tags[{number}]", depth + 1, trigger) for number, tag in begun)
                triggered.append(f"{self._text_up_to(trigger)} ({' | '.join(rests)})")
        if tags:
            raise ValueError(f"{place}.tags[{tags[0][0]}].begin does not start with any of the triggers")
        each = self._rule(" | ".join(triggered))
        text = self._rule("TEXT")
        if not element.get("at_least_one"):
            return self._rule(f"{each} | {text}" if element.get("stop_after_first") else f"{each}* {text}")
        first = self._rule(" | ".join(self._elements(element, "tags", place, depth)))
        return first if element.get("stop_after_first") else self._rule(f"{first} {each}* {text}")

    def _separated(self, element: Mapping[str, Any], place: str, depth: int) -> str:
        """Tags with a separator between them."""
        _tags(element, place)
        each = self._rule(" | ".join(self._elements(element, "tags", place, depth)))
        separator = _string(element, "separator", place)
        more = f"({self._literal(separator)} {each})*" if separator else f"{each}*"
        row = each if element.get("stop_after_first") else self._rule(f"{each} {more}")
        return row if element.get("at_least_one") else self._rule(f"({row})?")


_WRITERS: Mapping[str, Callable[[TagGrammar, Mapping[str, Any], str, int], str]] = {
    "const_string": TagGrammar._const,
    "json_schema": TagGrammar._schema,
    "regex": TagGrammar._regex,
    "any_text": TagGrammar._any_text,
    "sequence": TagGrammar._sequence,
    "or": TagGrammar._or,
    "tag": TagGrammar._tag,
    "triggered_tags": TagGrammar._triggered,
    "tags_with_separator": TagGrammar._separated,
}
_ELSEWHERE = ("grammar", "qwen_xml_parameter")


def _from_structures(tag: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the older format to the newer one."""
    structures = _list(tag, "structures", "the structural tag")
    tags = []
    for index, each in enumerate(structures):
        if not isinstance(each, dict):
            raise ValueError(f"structures[{index}] must be an object")
        content = {"type": "json_schema", "json_schema": each.get("schema")}
        tags.append({"begin": each.get("begin"), "content": content, "end": each.get("end", "")})
    return {"type": "triggered_tags", "triggers": tag.get("triggers"), "tags": tags}


def _tags(element: Mapping[str, Any], place: str) -> list[tuple[int, dict[str, Any]]]:
    """The tags with their indices."""
    tags = list(enumerate(_list(element, "tags", place)))
    for index, tag in tags:
        if not isinstance(tag, dict):
            raise ValueError(f"{place}.tags[{index}] must be an object")
        _string(tag, "begin", f"{place}.tags[{index}]")
        tag.setdefault("type", "tag")
    return tags


def _string(element: Mapping[str, Any], key: str, place: str) -> str:
    value = element.get(key)
    if not isinstance(value, str):
        raise ValueError(f"{place}.{key} must be a string")
    return value


def _list(element: Mapping[str, Any], key: str, place: str) -> Sequence[Any]:
    value = element.get(key)
    if not isinstance(value, list) or not value:
        raise ValueError(f"{place}.{key} must be a non-empty list")
    return value
