"""Seeds for requests that bring none.

The first who can draws one, so that whoever goes on with a request goes on with the same noise: the gateway for what
comes over HTTP, unless it is greedy; a router for who calls it directly; an engine for who calls that.
"""

from __future__ import annotations

import random


class SeedSource:
    """Draws them at random, or, given a seed itself, the same ones in the same order after each start."""

    def __init__(self, seed: int | None = None, generator: random.Random | None = None) -> None:
        """
        Args:
            generator: to draw from in place of one of its own.
        """
        own = random.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311  (no secrets)
        self._generator = generator or own

    def draw(self) -> int:
        """Between 0 and 2**63 - 1."""
        return self._generator.getrandbits(63)
