"""Calls that are JSON objects with a name and arguments: `{"name": …, "arguments": …}`, alone or in a list."""

from __future__ import annotations

import json
from typing import ClassVar

from gateway.tool_parsers.base import CallSyntax, MarkedToolParser
from gateway.tool_parsers.json_text import read_string, read_value
from gateway.tool_parsers.scanner import NotACallError, Scanner, Sink, Steps

_ARGUMENTS = ("arguments", "parameters")
_KEYS = ("name", *_ARGUMENTS, "type", "id", "index")


class JsonCallParser(MarkedToolParser):
    """Parses the object. If a key occurs twice, the first one counts; unknown keys are skipped."""

    # Markers after which an object need not be a call: it is certain only once its arguments begin, not with its name,
    # and a key that calls do not have rules it out.
    doubtful: ClassVar[tuple[str, ...]] = ("",)
    name_key: ClassVar[str] = "name"
    arguments_key: ClassVar[str] = "arguments"

    @classmethod
    def object_syntax(cls, name: str) -> CallSyntax:
        """Returns how the object alone is written."""
        return CallSyntax(f'{{"{cls.name_key}": {json.dumps(name, ensure_ascii=False)}, "{cls.arguments_key}": ', "}")

    def read_object(self, marker: str) -> Steps[None]:
        """Reads a call.

        Raises:
            NotACallError: it is not a call.
        """
        yield from self.text.expect("{")
        call = _Call(self, marker in self.doubtful)
        while (following := (yield from self.text.peek_past_space())) != "}":
            if following == ",":
                self.text.take(1)
            else:
                yield from call.read_member()
        self.text.take(1)
        call.end()

    def read_list(self, marker: str) -> Steps[None]:
        """Reads a list of calls in brackets."""
        yield from self.text.expect("[")
        while (following := (yield from self.text.peek_past_space())) != "]":
            if following == ",":
                self.text.take(1)
            else:
                self.text.hold()
                yield from self.read_object(marker)
        self.text.take(1)
        if self.text.holds:  # no call at all
            raise NotACallError


def read_arguments(text: Scanner, sink: Sink) -> Steps[None]:
    """Reads a call's arguments: an object as written, a string that contains one, or null for none.

    Raises:
        NotACallError: what follows is not JSON.
    """
    first = yield from text.peek_past_space()
    if first in "{[":
        yield from read_value(text, sink)
    elif first == '"':
        sink((yield from read_string(text)) or "{}")
    else:
        pieces: list[str] = []
        yield from read_value(text, pieces.append)
        scalar = "".join(pieces)
        sink("{}" if scalar == "null" else scalar)


def read_bare_arguments(text: Scanner, sink: Sink) -> Steps[None]:
    """Reads arguments that are not inside a call object; there may be none."""
    if (yield from text.peek_past_space()) in '{["':
        yield from read_arguments(text, sink)
    else:
        sink("{}")


class _Call:
    """Reads one call object, member by member."""

    def __init__(self, parser: JsonCallParser, is_doubtful: bool) -> None:
        self._parser = parser
        self._is_doubtful = is_doubtful
        self._name = ""
        self._begun = False
        self._early: str | None = None  # arguments that came before the name
        self._has_arguments = False

    def read_member(self) -> Steps[None]:
        text = self._parser.text
        key = yield from read_string(text)
        if self._is_doubtful and not self._begun and key not in _KEYS:
            raise NotACallError
        yield from text.peek_past_space()
        yield from text.expect(":")
        first = yield from text.peek_past_space()
        if key == self._parser.name_key and not self._name:
            self._name = yield from read_string(text)
            self._name_is_known()
        elif key in _ARGUMENTS and not self._has_arguments and self._early is None:
            yield from self._read_arguments(first)
        else:
            yield from read_value(text, _pass_over)

    def _name_is_known(self) -> None:
        if not self._is_doubtful or self._early is not None:
            self._begin()
        if self._early is not None:
            self._parser.found.arguments(self._early)
            self._has_arguments = True

    def _begin(self) -> None:
        self._parser.begin_call(self._name)
        self._begun = True

    def _read_arguments(self, first: str) -> Steps[None]:
        if not self._name:
            pieces: list[str] = []
            yield from read_arguments(self._parser.text, pieces.append)
            self._early = "".join(pieces)
            return
        if not self._begun:
            if first != "{":
                raise NotACallError
            self._begin()
        self._has_arguments = True
        yield from read_arguments(self._parser.text, self._parser.found.arguments)

    def end(self) -> None:
        """
        Raises:
            NotACallError: the object was not a call.
        """
        if not self._begun:
            raise NotACallError
        if not self._has_arguments:
            self._parser.found.arguments("{}")


def _pass_over(text: str) -> None:
    """Sink for values that are not part of a call."""
