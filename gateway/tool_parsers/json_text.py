"""Reads JSON incrementally. Values are passed on as written; only strings and brackets are interpreted."""

from __future__ import annotations

import json
import re

from gateway.tool_parsers.scanner import NotACallError, Scanner, Sink, Steps

_STRING_BODY = re.compile(r'(?:[^"\\]++|\\.)*+', re.DOTALL)
_SCALAR = re.compile(r"[-+.\w]*+")
# JSON has no `<` outside strings: it begins the end mark of a call whose JSON is incomplete.
_STRUCTURE = re.compile(r'["\[\]{}<]')


class BracketScanner:
    """Finds the end of an object or array."""

    def __init__(self) -> None:
        self.ended = False
        self.broken = False  # what follows is not JSON
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def __call__(self, text: str, start: int) -> int:
        """Returns how far the value goes in this text, of which everything before `start` was already scanned."""
        place = start
        while place < len(text) and not self.ended:
            if self._in_string:
                place = self._go_on_in_string(text, place)
                continue
            found = _STRUCTURE.search(text, place)
            if found is None:
                return len(text)
            if found.group() == "<":
                self.broken = True
                return found.start()
            self._meet(found.group())
            place = found.end()
        return place

    def _go_on_in_string(self, text: str, place: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            return place + 1
        found = _STRING_BODY.match(text, place)
        place = found.end() if found else place
        if place == len(text):
            return place
        self._in_string = self._is_escaped = text[place] == "\\"  # the first half of an escape, or the string's end
        return place + 1

    def _meet(self, character: str) -> None:
        if character == '"':
            self._in_string = True
        else:
            self._depth += 1 if character in "[{" else -1
            self.ended = self._depth == 0


def read_value(text: Scanner, sink: Sink) -> Steps[None]:
    """Reads any value, piece by piece.

    Raises:
        NotACallError: there is none, or it is not JSON.
    """
    first = yield from text.peek_past_space()
    if first in "{[":
        yield from _read_brackets(text, sink)
    elif first == '"':
        yield from _read_raw_string(text, sink)
    else:
        scalar = yield from text.word(_SCALAR)
        if not scalar:
            raise NotACallError
        sink(scalar)


def _read_brackets(text: Scanner, sink: Sink) -> Steps[None]:
    brackets = BracketScanner()
    while True:
        text.scan(brackets, sink)
        if brackets.broken:
            raise NotACallError
        if brackets.ended:
            return
        yield from text.more()


def _read_raw_string(text: Scanner, sink: Sink) -> Steps[None]:
    sink(text.take(1))
    while (yield from text.pour(_STRING_BODY, sink)) != '"':
        yield from text.more()
    sink(text.take(1))


def read_string(text: Scanner) -> Steps[str]:
    """Reads a string, and returns its value.

    Raises:
        NotACallError: there is none.
    """
    if (yield from text.peek_past_space()) != '"':
        raise NotACallError
    pieces: list[str] = []
    yield from _read_raw_string(text, pieces.append)
    try:
        return whole_characters(json.loads("".join(pieces), strict=False))
    except ValueError as error:
        raise NotACallError from error


def whole_characters(text: str) -> str:
    """Joins surrogate pairs; lone surrogates are replaced, because UTF-8 cannot encode them."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
