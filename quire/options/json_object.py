"""Validates options that are JSON objects with known keys."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from quire.options.nearest import nearest

_MOST_SHOWN = 100  # characters shown of a wrong key or value


def check_object(value: Mapping[str, Any], schema: type[msgspec.Struct]) -> None:
    """Validates an object against a schema.

    Raises:
        ValueError: a key is unknown (the message suggests the nearest one), a value has the wrong type, or the schema's
            own check refuses the object.
    """
    known = schema.__struct_fields__
    for key in value:
        if key not in known:
            shown = key[:_MOST_SHOWN]
            raise ValueError(f"{shown} is not known.{nearest(shown, known)} Known keys: {', '.join(known)}.")
    try:
        msgspec.convert(value, schema)
    except msgspec.ValidationError as error:
        raise ValueError(_named(str(error), value)) from None


def _named(message: str, value: Mapping[str, Any]) -> str:
    """Rewrites msgspec's message about a key's value to begin with the key and the value; others stay as they are."""
    what, _, path = message.partition(" - at `$.")
    key = re.match(r"\w+", path)
    if key is None or key[0] not in value:
        return message
    return f"{path[:-1]}: {what}, and {key[0]} is {json.dumps(value[key[0]], default=str)[:_MOST_SHOWN]}."
