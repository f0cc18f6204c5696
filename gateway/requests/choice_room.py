"""How many choices may run in a gateway at a time, and how tenants share them; and so with other things."""

from __future__ import annotations

from collections import Counter

from quire.errors import Overloaded

# Half of the streams that the tokenizer service keeps for a session: those that one frame closes may still stand when
# those that it opens come.
MAX_LIVE_CHOICES = 32768


class ChoiceRoom:
    """Nobody may take more than is left then for others: one tenant alone gets half of the room, the next one half of
    the rest, and so on (dynamic thresholds, Choudhury and Hahne 1998). So no caller can shut the others out."""

    def __init__(self, size: int = MAX_LIVE_CHOICES, unit: str = "choices") -> None:
        """
        Args:
            unit: what is counted, in words.
        """
        self._unit = unit
        self._free = size
        self._taken: Counter[str] = Counter()

    def enter(self, tenant: str, choices: int) -> None:
        """Takes room for a request, until it leaves.

        Raises:
            Overloaded: there is not enough.
        """
        if self._taken[tenant] + choices > self._free - choices:
            raise Overloaded(
                f"{self._taken[tenant]} {self._unit} of this caller run already, and there is no room for {choices} "
                "more: try again when some have ended."
            )
        self._taken[tenant] += choices
        self._free -= choices

    def leave(self, tenant: str, choices: int) -> None:
        """Gives a request's room back."""
        self._free += choices
        self._taken[tenant] -= choices
        if not self._taken[tenant]:
            del self._taken[tenant]
