"""How many requests may be on their second attempt at once, so that a sick fleet is not drowned in retries."""

from __future__ import annotations

_SHARE_OF_ACTIVE = 0.2
_MINIMUM = 3


class RetryBudget:
    """Retries in flight, at most a fifth of the active requests and three in any case."""

    def __init__(self) -> None:
        self.used = 0

    def take(self, active: int) -> bool:
        """Claims a retry if one of `active` requests may have it."""
        if self.used >= max(_MINIMUM, _SHARE_OF_ACTIVE * active):
            return False
        self.used += 1
        return True

    def give_back(self) -> None:
        """The retried request has its first token, or has ended."""
        self.used -= 1
