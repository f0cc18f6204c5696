"""Fields that clients of other servers send and that ask for what Quire does not do: refused, never ignored.

Fields that are neither here nor in `gateway/protocol` nobody knows: they are taken, and told to the log.
"""

from __future__ import annotations

import msgspec

from quire.compatibility.refused_fields import REFUSED
from quire.errors import InvalidRequest


def check_refused(body: msgspec.Struct) -> None:
    """
    Raises:
        InvalidRequest: a field asks for what Quire does not do; names the first.
    """
    for name, refused in REFUSED.items():
        value = getattr(body, name, None)
        if value is not None and not any(type(value) is type(each) and value == each for each in refused.neutral):
            raise InvalidRequest(f"{name} is refused: {refused.why}. Leave it out.", parameter=name)
