"""Tells which field of a request is missing or of the wrong type."""

from __future__ import annotations

import re

import msgspec

from quire.errors import InvalidRequest

_PATH = re.compile(r" - at `(?:key in )?\$\.?([^`]*)`$")
_MISSING = re.compile(r"missing required field `([^`]*)`")


def wrong_field(error: msgspec.ValidationError) -> InvalidRequest:
    """Returns the error for what msgspec has found; it names the field."""
    text = str(error)
    path, missing = _PATH.search(text), _MISSING.search(text)
    field = path[1] if path else ""
    named = ".".join(name for name in (field, missing[1] if missing else "") if name)
    return InvalidRequest(f"{field + ': ' if field else ''}{_PATH.sub('', text)[:500]}", parameter=named[:200])
