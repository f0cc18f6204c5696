"""What somebody may have meant who named something that there is not."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping


def nearest(name: str, known: Iterable[str]) -> str:
    """` Did you mean …?`, with the known name that is most like it; empty where none is."""
    close = _nearest(name, known)
    return f" Did you mean {close}?" if close else ""


def nearest_with_meaning(name: str, meanings: Mapping[str, str]) -> str:
    """The same, and what the nearest one is for."""
    close = _nearest(name, meanings)
    return f" Did you mean {close}? {meanings[close]}" if close else ""


def _nearest(name: str, known: Iterable[str]) -> str:
    return next(iter(difflib.get_close_matches(name, list(known), n=1)), "")
