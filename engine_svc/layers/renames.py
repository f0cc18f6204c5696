"""Leads names back to what they were before a model family renamed them (see ModelConfig.renames)."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

# The parts of expressions that can be undone: anchors, text, and groups of alternatives or of anything.
_PIECE = re.compile(
    r"(?P<anchor>\^|\$|\\b)|\\(?P<escaped>\W)|(?P<plain>\w+)|\((?P<unnumbered>\?:)?(?P<inner>[^()]+)\)(?P<maybe>\??)"
)
_ALTERNATIVES = re.compile(r"(\w|\\\.|\|)+")
_ANYTHING = (r"\d+", r"\w+")


def names_before(names: Iterable[str], renames: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The names, and all that become one of them when they are renamed.

    An expression that is too general cannot be undone; the names that it changes are missing.
    """
    found = list(names)
    for pattern, ours in reversed(renames):
        found += [
            undo.sub(theirs, f"{name}.")[:-1]
            for undo, theirs in _undone(pattern, ours)
            for name in found
            if undo.search(f"{name}.")
        ]
    return tuple(dict.fromkeys(found))


@functools.cache
def _undone(pattern: str, ours: str) -> Sequence[tuple[re.Pattern[str], str]]:
    """The renames that undo one, several if it leads to a name from several."""
    pieces: list[Sequence[str]] = []
    numbered: list[int] = []  # indices of the pieces that are numbered groups
    at = 0
    while at < len(pattern):
        piece = _PIECE.match(pattern, at)
        if piece is None or not (texts := _texts(piece)):
            return ()
        if piece["inner"] and not piece["unnumbered"]:
            numbered.append(len(pieces))
        pieces.append(texts)
        at = piece.end()
    start = "^" if pattern.startswith("^") else ""
    groups = {f"\\{number}": index for number, index in enumerate(numbered, 1)}
    return [
        (re.compile(start + _after(ours, texts, groups)), _before(texts, groups))
        for texts in itertools.product(*pieces)
    ]


def _texts(piece: re.Match[str]) -> Sequence[str]:
    """What a piece may stand for, or the expression for anything; empty if that is unknown."""
    if piece["anchor"]:
        return ("",)
    if (inner := piece["inner"]) is None:
        return (piece["escaped"] or piece["plain"],)
    if inner in _ANYTHING:
        return () if piece["maybe"] or piece["unnumbered"] else (inner,)
    if not _ALTERNATIVES.fullmatch(inner):
        return ()
    return (*inner.replace("\\", "").split("|"), *([""] if piece["maybe"] else []))


def _after(ours: str, texts: Sequence[str], groups: Mapping[str, int]) -> str:
    """An expression for what a rename writes."""
    parts = re.split(r"(\\\d)", ours)
    for index, part in enumerate(parts):
        text = texts[groups[part]] if part in groups else part
        parts[index] = f"(?P<group{groups[part]}>{text})" if text in _ANYTHING else re.escape(text)
    return "".join(parts)


def _before(texts: Sequence[str], groups: Mapping[str, int]) -> str:
    """What it was written in place of."""
    return "".join(rf"\g<group{index}>" if text in _ANYTHING else text for index, text in enumerate(texts))
