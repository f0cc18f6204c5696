"""Options that are a JSON object with known keys."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from quire.options.nearest import nearest

_MOST_SHOWN = 100  # characters of a wrong value


def check_object(value: Mapping[str, Any], schema: type[msgspec.Struct]) -> None:
    """
    Raises:
        ValueError: a key is unknown, with the nearest known one; or a value is not of its key's type, or the object is
            refused by the schema's own check.
    """
    known = schema.__struct_fields__
    for key in value:
        if key not in known:
            raise ValueError(f"{key} is not known.{nearest(key, known)} It takes {', '.join(known)}.")
    try:
        msgspec.convert(value, schema)
    except msgspec.ValidationError as error:
        raise ValueError(_named(str(error), value)) from None


def _named(message: str, value: Mapping[str, Any]) -> str:
    """What msgspec says of a key's value, beginning with the key and the value; all else as it is."""
    what, _, path = message.partition(" - at `$.")
    key = re.match(r"\w+", path)
    if key is None or key[0] not in value:
        return message
    return f"{path[:-1]}: {what}, and {key[0]} is {json.dumps(value[key[0]], default=str)[:_MOST_SHOWN]}."
