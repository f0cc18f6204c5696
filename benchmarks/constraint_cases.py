"""Constraints to try backends with: handwritten and generated schemas, regular expressions and grammars."""

from __future__ import annotations

import random
from typing import Any

_INT = {"type": "integer", "minimum": -50, "maximum": 999}
_WORD = {"type": "string", "maxLength": 8}

# Each has one keyword or one combination of keywords; all are bounded, so that outputs come to an end.
SCHEMAS: tuple[Any, ...] = (
    {"type": "null"},
    {"type": "boolean"},
    {"type": "integer", "minimum": 3, "maximum": 3},
    {"type": "integer", "exclusiveMinimum": -1, "exclusiveMaximum": 12},
    {"type": "integer", "minimum": 0, "maximum": 90, "multipleOf": 15},
    {"type": "number", "minimum": -1.5, "maximum": 1.5},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "string", "maxLength": 0},
    {"type": "string", "minLength": 3, "maxLength": 5},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    {"type": "string", "pattern": "^(a|b)+c$", "maxLength": 12},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "ipv4"},
    {"const": {"a": [1, None, "é\n\"\\"]}},
    {"enum": [1, "one", None, True, 1.5, [], {}, {"b": []}]},
    {"type": ["integer", "null"], "minimum": 0, "maximum": 9},
    {"type": "array", "items": _INT, "maxItems": 4},
    {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 2},
    {"type": "array", "prefixItems": [_INT, _WORD], "items": False, "minItems": 2},
    {"type": "array", "prefixItems": [_INT], "items": _WORD, "minItems": 1, "maxItems": 3},
    {"type": "array", "items": {"type": "array", "items": {"type": "null"}, "maxItems": 2}, "maxItems": 2},
    {"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True, "maxItems": 3},
    {"type": "array", "contains": {"const": 7}, "items": {"enum": [6, 7]}, "maxItems": 3},
    {"type": "object", "additionalProperties": False},
    {"type": "object", "properties": {"a": _INT}, "additionalProperties": False},
    {"type": "object", "properties": {"a": _INT, "b": _WORD}, "required": ["b"], "additionalProperties": False},
    {"type": "object", "properties": {"ü \"q\"": _INT}, "required": ["ü \"q\""], "additionalProperties": False},
    {"type": "object", "required": ["x"], "additionalProperties": {"enum": [0, 1]}, "maxProperties": 2},
    {"type": "object", "patternProperties": {"^k[0-9]$": _INT}, "additionalProperties": False, "maxProperties": 2},
    {"type": "object", "properties": {"a": {"type": "object", "properties": {"b": _INT}, "required": ["b"],
     "additionalProperties": False}}, "required": ["a"], "additionalProperties": False},
    {"properties": {"a": _INT}, "type": "object", "required": ["a"], "maxProperties": 1},
    {"anyOf": [_INT, {"type": "null"}, {"const": "x"}]},
    {"anyOf": [{"type": "object", "properties": {"k": {"const": 1}}, "required": ["k"], "additionalProperties": False},
               {"type": "object", "properties": {"k": {"const": 2}, "v": _WORD}, "required": ["k", "v"],
                "additionalProperties": False}]},
    {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 5}, {"type": "boolean"}]},
    {"oneOf": [{"type": "integer", "minimum": 0, "maximum": 5}, {"type": "integer", "minimum": 4, "maximum": 9}]},
    {"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 7}]},
    {"allOf": [{"type": "object", "properties": {"a": _INT}, "required": ["a"]},
               {"properties": {"b": {"type": "boolean"}}, "required": ["b"]}], "additionalProperties": True,
     "maxProperties": 2},
    {"not": {"type": "string"}},
    {"type": "integer", "minimum": 0, "maximum": 9, "not": {"const": 5}},
    {"if": {"properties": {"a": {"const": 1}}}, "then": {"required": ["b"]}, "type": "object"},
    {"type": "object", "dependentRequired": {"a": ["b"]}, "properties": {"a": _INT, "b": _INT},
     "additionalProperties": False},
    {"type": "object", "propertyNames": {"maxLength": 2}, "additionalProperties": _INT, "maxProperties": 2},
    {"$ref": "#/$defs/word", "$defs": {"word": _WORD}},
    {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
        "v": {"type": "boolean"}, "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/node"}]}},
        "required": ["v", "next"], "additionalProperties": False}}},
    {"$ref": "#/definitions/a/properties/b", "definitions": {"a": {"properties": {"b": {"enum": ["b"]}}}}},
    {"type": "object", "properties": {"a": {"$ref": "#/$defs/i", "description": "said beside"}}, "required": ["a"],
     "$defs": {"i": _INT}, "additionalProperties": False},
    {"type": "array", "items": {"$ref": "#"}, "maxItems": 1},
    {"type": "string", "minLength": 2, "maxLength": 4, "enum": ["a", "ab", "abc", "abcde"]},
)  # fmt: skip

# Digits are ASCII only: what \d means beyond them depends on the Unicode version.
REGEXES = (
    "[a-f0-9]{8}",
    "(ja|nein)!?",
    "[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "[A-Z][a-z]{0,6}( [A-Z][a-z]{0,6}){0,2}",
    "a?b?c?",
    "(ab|cd){2,4}",
    r"[A-Za-z0-9_.]{1,8}@[a-z]{1,6}\.(com|org)",
    r"-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,2})?",
    "[^a-z\n]{3}",
    r"\+?\(?[0-9]{2,3}\)?[ -][0-9]{3}",
    "(?:yes|no)(?:, (?:yes|no)){0,3}",
    "#[0-9A-Fa-f]{6}",
    "é{1,3}ü?",
    "[αβγ]{2}",
    r"\s{0,2}x\s{0,2}",
    r"\.\*\[\]\(\)\{2\}",
    r"([0-9]{1,3}\.){3}[0-9]{1,3}",
    "x{0,20}",
    r"[\x20-\x7e]{5}",
    "(a(b(c|d)){1,2}){1,2}",
)

# In notation that Lark itself reads the same way as llguidance, so that Lark can tell what is valid.
GRAMMARS = (
    'start: "a" | "b" start_tail\nstart_tail: "c"',
    'start: expr\nexpr: term (("+"|"-") term)*\nterm: NUMBER | "(" expr ")"\nNUMBER: /[0-9]{1,3}/',
    'start: list\nlist: "[" [item ("," item)*] "]"\nitem: WORD | list\nWORD: /[a-z]{1,4}/',
    'start: "SELECT " COLUMN " FROM " TABLE ("=" VALUE)?\nCOLUMN: "id"\nTABLE: /t[0-9]/\nVALUE: /[0-9]{1,2}/',
    'start: pair+\npair: KEY "=" VALUE ";"\nKEY: /[a-z]{1,3}/\nVALUE: /[0-9]{1,3}/',
    'start: "x" start "y" | "z"',
    'start: greeting " " NAME "!"\ngreeting: "Hello" | "Hallo" | "Salut"\nNAME: /[A-Z][a-z]{1,5}/',
    'start: tag\ntag: "<b>" inner "</b>"\ninner: TEXT | tag\nTEXT: /[a-z ]{1,6}/',
    'start: or_\nor_: and_ (" or " and_)*\nand_: ATOM (" and " ATOM)*\nATOM: "p" | "q" | "not r"',
    'start: A B? C\nA: "a"\nB: "b"\nC: "c" | "d"',
)  # fmt: skip


def generated_schemas(count: int, seed: int = 0) -> list[Any]:
    """Random schemas of nested objects, lists and scalars, bounded in every way."""
    choose = random.Random(seed)
    return [_object(choose, 3) if choose.random() < 0.7 else _any(choose, 3) for _ in range(count)]


def _any(choose: random.Random, depth: int) -> Any:
    kinds = [_integer, _number, _string, _enum, _scalar] + ([_object, _array, _union] if depth else [])
    return choose.choice(kinds)(choose, depth)


def _integer(choose: random.Random, depth: int) -> Any:
    least = choose.randrange(-1000, 1000)
    return {"type": "integer", "minimum": least, "maximum": least + choose.randrange(2000)}


def _number(choose: random.Random, depth: int) -> Any:
    least = choose.randrange(-100, 100) / 4
    return {"type": "number", "minimum": least, "maximum": least + choose.randrange(1, 90) / 2}


def _string(choose: random.Random, depth: int) -> Any:
    least = choose.randrange(3)
    return {"type": "string", "minLength": least, "maxLength": least + choose.randrange(8)}


def _enum(choose: random.Random, depth: int) -> Any:
    return {"enum": choose.sample(["red", "grün", "", "a b", 1, 2.5, None, True, "\t"], choose.randrange(1, 5))}


def _scalar(choose: random.Random, depth: int) -> Any:
    return {"type": choose.choice(["boolean", "null"])}


def _object(choose: random.Random, depth: int) -> Any:
    names = choose.sample(["id", "name", "größe", "tags", "a-b", "x y", "n"], choose.randrange(1, 4))
    return {
        "type": "object", "properties": {name: _any(choose, depth - 1) for name in names},
        "required": sorted(choose.sample(names, choose.randrange(len(names) + 1))), "additionalProperties": False,
    }  # fmt: skip


def _array(choose: random.Random, depth: int) -> Any:
    least = choose.randrange(2)
    return {"type": "array", "items": _any(choose, depth - 1), "minItems": least,
            "maxItems": least + choose.randrange(3)}  # fmt: skip


def _union(choose: random.Random, depth: int) -> Any:
    return {"anyOf": [_any(choose, depth - 1) for _ in range(choose.randrange(2, 4))]}
