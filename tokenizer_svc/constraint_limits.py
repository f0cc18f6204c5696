"""Limits on constraints, whichever backend compiles them. Checked in the killable process, as compiling is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from quire.errors import InvalidRequest
from quire.structured.base import ConstraintRequest, Form

MAX_DEPTH = 100  # nesting depth of objects and lists
MAX_COUNT = 2**20  # bound on characters, items and repetitions: more than any output has

_COUNTED = ("Length", "Items", "Properties", "Contains")
_COUNTS = tuple(f"{bound}{what}" for bound in ("min", "max") for what in _COUNTED)
_BOUNDS = re.compile(r"(?<!\\)\{(\d*),?(\d*)\}")
# A group that consists of an unbounded repetition and is itself repeated without bound.
_ENDLESS = r"(?:[+*]|\{\d+,\})[?+]?"
_REPEATED_TWICE = re.compile(
    r"\((?:\?:)?(?:\\.|[^\\()\[\]|*+?{}]|\[\^?\]?(?:\\.|[^\]\\]){0,64}\])" + _ENDLESS + r"\)" + _ENDLESS
)


def check_limits(request: ConstraintRequest) -> None:
    """
    Raises:
        InvalidRequest: the constraint nests too deeply, counts too high, or repeats an unbounded repetition.
    """
    if request.form in (Form.JSON_SCHEMA, Form.STRUCTURAL_TAG):
        _check_json(request.text)
    elif request.form is Form.REGEX:
        _check_regex(request.text)
    elif request.form is Form.GRAMMAR:
        _check_repetitions(request.text)
    _check_regex(request.whitespace_pattern)


def _check_json(text: str) -> None:
    try:
        value = json.loads(text)
    except RecursionError:
        raise InvalidRequest(f"It nests too deeply; at most {MAX_DEPTH} levels are allowed.") from None
    except ValueError as error:
        raise InvalidRequest(f"It is not valid JSON: {error}") from None
    for depth, part in _parts(value):
        if depth > MAX_DEPTH:
            raise InvalidRequest(f"It nests more than {MAX_DEPTH} levels deep.")
        for name in _COUNTS:
            count = part.get(name)
            if isinstance(count, int | float) and count > MAX_COUNT:
                raise InvalidRequest(
                    f"{name} is {str(count)[:50]}; at most {MAX_COUNT} is allowed: leave it out, or lower it."
                )
        for pattern in _patterns(part):
            _check_regex(pattern)


def _parts(value: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields every object in a JSON value with its nesting depth."""
    todo = [(1, value)]
    while todo:
        depth, part = todo.pop()
        if isinstance(part, dict):
            yield depth, part
            todo += [(depth + 1, each) for each in part.values()]
        elif isinstance(part, list):
            todo += [(depth + 1, each) for each in part]


def _patterns(part: dict[str, Any]) -> Iterator[str]:
    if isinstance(pattern := part.get("pattern"), str):
        yield pattern
    if isinstance(patterns := part.get("patternProperties"), dict):
        yield from patterns


def _check_regex(pattern: str) -> None:
    _check_repetitions(pattern)
    if found := _REPEATED_TWICE.search(pattern):
        shown = found[0][:50]
        raise InvalidRequest(
            f"{shown!r} nests unbounded repetitions, which other regular expression engines need exponential time "
            "for; repeat it only once."
        )


def _check_repetitions(text: str) -> None:
    for found in _BOUNDS.finditer(text):
        digits = max(found[1], found[2], key=lambda each: (len(each), each))
        if len(digits) > 9 or int(digits or 0) > MAX_COUNT:
            raise InvalidRequest(f"{found[0][:50]!r} repeats too often; at most {MAX_COUNT} times are allowed.")
