"""Limits how many requests may be retried at once, so that an ailing fleet is not flooded with retries."""

from __future__ import annotations

_SHARE_OF_ACTIVE = 0.2
_MINIMUM = 3


class RetryBudget:
    """Counts the retries in flight: at most a fifth of the active requests, though three are always allowed."""

    def __init__(self) -> None:
        self.used = 0

    def take(self, active: int) -> bool:
        """Claims a retry and returns True, if the budget for `active` requests has one left."""
        if self.used >= max(_MINIMUM, _SHARE_OF_ACTIVE * active):
            return False
        self.used += 1
        return True

    def give_back(self) -> None:
        """Returns a claimed retry, when the retried request has its first token or has ended."""
        self.used -= 1
