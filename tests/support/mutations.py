"""Files and JSON that are broken in ways in which they break, or are made to."""

from __future__ import annotations

import random
from typing import Any

_NUMBERS = (0, 1, -1, 2, 7, 255, 65_535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, -(2**63), 10**30, 0.5, 1e308, -0.0)
_VALUES: tuple[Any, ...] = (
    *_NUMBERS, None, True, False, "", "a", "\0", "é" * 300, "../../etc/passwd", "\ud800", "(a+)+$", "[", {}, [],
    [[]], [None], {"": None}, {"a": {"b": {"c": []}}}, float("inf"), float("nan"),
)  # fmt: skip


def broken_bytes(chance: random.Random, file: bytes) -> bytes:
    """A file with up to four damages: cut off, overwritten, repeated, emptied, or with other numbers in it."""
    found = bytearray(file)
    for _ in range(chance.randint(1, 4)):
        # The beginning is where formats say what comes.
        size = len(found) if chance.random() < 0.5 else min(len(found), 256)
        start = chance.randrange(size) if size else 0
        end = min(len(found), start + chance.choice((1, 1, 2, 4, 8, 64, 1000)))
        match chance.randrange(6):
            case 0:
                del found[start:]
            case 1:
                found[start:end] = chance.randbytes(end - start)
            case 2:
                found[start:end] = found[start:end] * chance.choice((2, 3, 100))
            case 3:
                found[start:end] = chance.choice((b"\0", b"\xff", b"\x7f")) * (end - start)
            case 4:
                width = chance.choice((1, 2, 4, 8))
                number = int(chance.choice(_NUMBERS)) % 2 ** (8 * width)
                found[start : start + width] = number.to_bytes(width, chance.choice(("big", "little")))
            case 5:
                del found[start:end]
    return bytes(found)


def broken_json(chance: random.Random, value: Any) -> Any:
    """A copy with up to three values or names that are others, missing, or there more often."""
    for _ in range(chance.randint(1, 3)):
        value = _changed(chance, value)
    return value


def _changed(chance: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value and chance.random() < 0.9:
        name = chance.choice(list(value))
        match chance.randrange(10):
            case 0:
                return {each: inner for each, inner in value.items() if each != name}
            case 1:
                return {chance.choice(("", "type", "x" * 300, "__class__")) if each == name else each: inner
                        for each, inner in value.items()}  # fmt: skip
            case _:
                return {**value, name: _changed(chance, value[name])}
    if isinstance(value, list) and value and chance.random() < 0.9:
        place = chance.randrange(len(value))
        match chance.randrange(8):
            case 0:
                return value[:place] + value[place + 1 :]
            case 1:
                return value + [value[place]] * chance.choice((1, 2, 50))
            case _:
                return [*value[:place], _changed(chance, value[place]), *value[place + 1 :]]
    return chance.choice(_VALUES)
