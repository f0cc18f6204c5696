"""Logs request fields that no endpoint knows, and tools that Quire does not run.

Both are accepted: OpenAI's clients send new ones every month.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from itertools import islice

import msgspec

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 60.0
# Longer bodies are not checked: that would delay other requests.
MAX_BYTES = 2**20
_SHOWN_NAMES = 20
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
        try:
            names = msgspec.json.decode(body, type=dict[str, msgspec.Raw]).keys()
        except UnicodeDecodeError:  # nobody has looked at what is ignored
            return
        if unknown := names - set(kind.__struct_fields__):
            self._next = now + PAUSE_SECONDS
            logger.warning("ignored in a %s, as Quire does not know them: %s", kind.__name__, _listed(unknown))


class LeftOutTools:
    """Logs the types of tools that are not offered to the model, at most one line a minute."""

    def __init__(self) -> None:
        self._next = 0.0

    def tell(self, types: Iterable[str]) -> None:
        """Logs the types, if there are any."""
        now, left_out = time.monotonic(), set(types)
        if left_out and now >= self._next:
            self._next = now + PAUSE_SECONDS
            logger.warning("tools left out of a request, as Quire does not run them: %s", _listed(left_out))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name[:_SHOWN_CHARACTERS]) for name in islice(sorted(names), _SHOWN_NAMES))
