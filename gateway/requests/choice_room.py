"""Limits how many choices (or bytes) a gateway handles at a time, and shares the limit between tenants."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

from quire.errors import Overloaded

# Half of the streams that the tokenizer service allows per session: the streams that a frame closes may still be
# counted when the ones it opens arrive.
MAX_LIVE_CHOICES = 32768


class ChoiceRoom:
    """No tenant may take more than remains free for others.

    One tenant alone gets half of the room, the next one half of the rest, and so on (dynamic thresholds, Choudhury and
    Hahne 1998), so that no caller can lock out the others.
    """

    def __init__(self, size: int = MAX_LIVE_CHOICES, unit: str = "choices") -> None:
        """
        Args:
            unit: name of what is counted, for error messages.
        """
        self._unit = unit
        self._free = size
        self._taken: Counter[str] = Counter()

    def enter(self, tenant: str, choices: int) -> None:
        """Reserves room for a request until `leave`.

        Raises:
            Overloaded: there is not enough.
        """
        if self._taken[tenant] + choices > self._free - choices:
            raise Overloaded(
                f"This caller already has {self._taken[tenant]} {self._unit} in flight, and there is no room for "
                f"{choices} more: try again when some have finished."
            )
        self._taken[tenant] += choices
        self._free -= choices

    def leave(self, tenant: str, choices: int) -> None:
        """Releases a request's room."""
        self._free += choices
        self._taken[tenant] -= choices
        if not self._taken[tenant]:
            del self._taken[tenant]

    @contextlib.contextmanager
    def held(self, tenant: str, choices: int) -> Iterator[None]:
        """Context in which room is reserved; raises as `enter`."""
        self.enter(tenant, choices)
        try:
            yield
        finally:
            self.leave(tenant, choices)
