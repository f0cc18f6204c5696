"""Options that are a JSON object with known keys."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import msgspec


def check_object(value: Mapping[str, Any], schema: type[msgspec.Struct]) -> None:
    """
    Raises:
        ValueError: a key is unknown, with the nearest known one; or a value is not of its key's type.
    """
    known = schema.__struct_fields__
    for key in value:
        if key not in known:
            close = difflib.get_close_matches(key, known, n=1)
            hint = f" Did you mean {close[0]}?" if close else ""
            raise ValueError(f"{key} is not known.{hint} It takes {', '.join(known)}.")
    msgspec.convert(value, schema)
