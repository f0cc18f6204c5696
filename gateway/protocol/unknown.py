"""Logs request fields that no endpoint knows. They are accepted: OpenAI's clients send new ones every month."""

from __future__ import annotations

import logging
import time
from itertools import islice

import msgspec

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 60.0
# Longer bodies are not checked: that would delay other requests.
MAX_BYTES = 2**20
_SHOWN_FIELDS = 20
_SHOWN_CHARACTERS = 50


class UnknownFields:
    """Logs unknown request fields, at most one line a minute."""

    def __init__(self) -> None:
        self._next = 0.0

    def look(self, body: bytes, kind: type[msgspec.Struct]) -> None:
        """Logs the fields of a body, a valid JSON object, that `kind` does not have."""
        now = time.monotonic()
        if now < self._next or len(body) > MAX_BYTES:
            return
        unknown = msgspec.json.decode(body, type=dict[str, msgspec.Raw]).keys() - set(kind.__struct_fields__)
        if unknown:
            self._next = now + PAUSE_SECONDS
            names = ", ".join(repr(name[:_SHOWN_CHARACTERS]) for name in islice(sorted(unknown), _SHOWN_FIELDS))
            logger.warning("ignored in a %s, as Quire does not know them: %s", kind.__name__, names)
