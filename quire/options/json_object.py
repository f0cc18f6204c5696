"""Options that are a JSON object with known keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from quire.options.nearest import nearest


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
    msgspec.convert(value, schema)
