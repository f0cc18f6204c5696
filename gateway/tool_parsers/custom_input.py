"""Reads the text for a custom tool out of a call's arguments, where models write it as `{"input": "…"}`."""

from __future__ import annotations

import re

from gateway.tool_parsers.json_text import whole_characters

PARAMETER = "input"

_BEGIN = re.compile(rf'\s*\{{\s*"{PARAMETER}"\s*:\s*"')
_HEX = "[0-9a-fA-F]"
# As much of a JSON string as does not depend on what follows: it ends before half an escape, or half a surrogate pair.
# Escapes that JSON does not have are text, because models write those of other languages.
_CERTAIN = re.compile(
    r'(?:[^"\\]++|\\[^u]'
    rf"|\\u(?![dD][89abAB]){_HEX}{{4}}"
    rf"|\\u[dD][89abAB]{_HEX}{{2}}(?:\\u{_HEX}{{4}}|(?=[^\\]|\\[^u]))"
    rf"|\\u(?={_HEX}{{0,3}}[^0-9a-fA-F]))*+"
)
_ESCAPE = re.compile(rf"\\(?:u({_HEX}{{4}})|(.))", re.DOTALL)
_ESCAPED = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class CustomInput:
    """The text of one call, as its arguments arrive."""

    def __init__(self) -> None:
        self._rest = ""  # arguments not read yet
        self._has_begun = self._has_ended = False

    def feed(self, arguments: str) -> str:
        """Returns the text that more of the arguments adds."""
        if self._has_ended:
            return ""
        self._rest += arguments
        if not self._has_begun:
            begin = _BEGIN.match(self._rest)
            if begin is None:
                return ""
            self._has_begun, self._rest = True, self._rest[begin.end() :]
        certain = _CERTAIN.match(self._rest)
        place = certain.end() if certain else 0
        told, self._rest = self._rest[:place], self._rest[place:]
        self._has_ended = self._rest.startswith('"')
        return whole_characters(_ESCAPE.sub(_character, told))

    def end(self) -> str:
        """Returns the text that is left: arguments of another form, as they are."""
        return "" if self._has_begun else self._rest


def _character(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else _ESCAPED.get(escape[2], escape[0])
