"""Converts Python literals to JSON incrementally. Nothing is evaluated."""

from __future__ import annotations

import json
import re

from gateway.tool_parsers.nested_values import read_nested
from gateway.tool_parsers.scanner import NotACallError, Scanner, Sink, Steps

_WORD = re.compile(r"[-+.\w]*+")
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*+)(?:\.\d++)?(?:[eE][-+]?\d++)?")
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a", "0": "\0", "\n": "", "/": "/"}
_DIGITS = {"x": 2, "u": 4, "U": 8}
_BODY = {"'": re.compile(r"[^'\\]*+"), '"': re.compile(r'[^"\\]*+')}
_CLOSE = {"[": "]", "(": ")", "{": "}"}
_MOST_DIGITS = 4000  # of a number; longer ones are slow to convert


def json_text(text: str) -> str:
    """Escapes text for use inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def read_literal(text: Scanner, sink: Sink) -> Steps[None]:
    """Reads a string, number, list, tuple, dict, True, False or None.

    Raises:
        NotACallError: it is something else.
    """
    yield from read_nested(text, sink, _CLOSE, lambda: _read_key(text, sink), lambda: _read_leaf(text, sink))


def _read_leaf(text: Scanner, sink: Sink) -> Steps[None]:
    if (yield from text.peek()) in _BODY:
        yield from _read_string(text, sink)
    else:
        sink((yield from _read_scalar(text)))


def _read_key(text: Scanner, sink: Sink) -> Steps[None]:
    """Reads a dict key, which becomes a string in JSON."""
    if (yield from text.peek_past_space()) in _BODY:
        yield from _read_string(text, sink)
    else:
        sink(f'"{yield from _read_scalar(text)}"')


def _read_scalar(text: Scanner) -> Steps[str]:
    word = yield from text.word(_WORD)
    if word in _WORDS:
        return _WORDS[word]
    if _JSON_NUMBER.fullmatch(word):
        return word
    if len(word) > _MOST_DIGITS:
        raise NotACallError
    try:
        return str(int(word, 0)) if not set(word) & set(".eEjJ") or word[:2] in ("0x", "0X") else _float(word)
    except ValueError as error:
        raise NotACallError from error


def _float(word: str) -> str:
    return json.dumps(float(word), allow_nan=False)


def _read_string(text: Scanner, sink: Sink) -> Steps[None]:
    """Reads a string in single or triple quotes; inside triple quotes, single quotes are text."""
    quote = text.take(1)
    end = quote + (yield from text.accept(quote * 2))
    sink('"')
    while True:
        following = yield from text.pour(_BODY[quote], lambda piece: sink(json_text(piece)))
        if following == quote and (yield from text.accept(end)):
            break
        text.take(1)
        sink(json_text(quote) if following == quote else (yield from _read_escape(text)))
    sink('"')


def _read_escape(text: Scanner) -> Steps[str]:
    """Reads the part after a backslash, escaped for JSON; an escape that Python does not know stays as it is."""
    kind = yield from text.peek()
    text.take(1)
    if kind not in _DIGITS:
        return json_text(_ESCAPES.get(kind, kind if kind in "'\"\\" else "\\" + kind))
    digits = ""
    while len(digits) < _DIGITS[kind]:
        yield from text.peek()
        digits += text.take(1)
    try:
        return json.dumps(chr(int(digits, 16)))[1:-1]
    except (ValueError, OverflowError) as error:
        raise NotACallError from error
