"""Rejects fields of other servers' clients that ask for something Quire does not support, rather than ignoring them.

Fields that are neither here nor in `gateway/protocol` are unknown: they are accepted, and logged.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from quire.compatibility.refused_fields import REFUSED, Refused
from quire.errors import InvalidRequest


def check_refused(body: msgspec.Struct, fields: Mapping[str, Refused] = REFUSED) -> None:
    """
    Args:
        fields: those to refuse; by default, those that no endpoint supports.

    Raises:
        InvalidRequest: a field asks for something unsupported; names the first one.
    """
    for name, refused in fields.items():
        value = getattr(body, name, None)
        if value is not None and not any(type(value) is type(each) and value == each for each in refused.neutral):
            raise InvalidRequest(f"{name} is refused: {refused.why}. Leave it out.", parameter=name)
