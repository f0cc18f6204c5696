"""Seeds for requests that bring none."""

from __future__ import annotations

import random


class SeedSource:
    """Draws them at random, or, given a seed itself, the same ones in the same order after each start."""

    def __init__(self, seed: int | None) -> None:
        self._generator = random.SystemRandom() if seed is None else random.Random(seed)  # noqa: S311  (no secrets)

    def draw(self) -> int:
        """Between 0 and 2**63 - 1."""
        return self._generator.getrandbits(63)
