"""Suggestions for misspelled names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean …?` with the most similar known name; empty if none is similar."""
    close = nearest_name(name, known)
    return f" Did you mean {close}?" if close else ""


def nearest_with_meaning(name: str, meanings: Mapping[str, str]) -> str:
    """The same, followed by the meaning of that name."""
    close = nearest_name(name, meanings)
    return f" Did you mean {close}? {meanings[close]}" if close else ""


def nearest_name(name: str, known: Iterable[str]) -> str:
    """The most similar known name; empty if none is similar."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), "")
