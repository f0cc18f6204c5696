"""Seeds for requests that bring none.

The first service that can draws the seed, so that any worker continuing the request uses the same noise: the gateway
for HTTP requests, unless they are greedy; a router for its direct callers; an engine for its own.
"""

from __future__ import annotations

import random


class SeedSource:
    """Draws random seeds, or, given a seed itself, the same ones in the same order after each start."""

    def __init__(self, seed: int | None = None, generator: random.Random | None = None) -> None:
        """
        Args:
            generator: drawn from instead of a generator of its own.
        """
        own = random.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311  (no secrets)
        self._generator = generator or own

    def draw(self) -> int:
        """Draws a seed between 0 and 2**63 - 1."""
        return self._generator.getrandbits(63)
