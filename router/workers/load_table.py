"""The loads of all workers side by side, so that a placement looks at a thousand of them as fast as at ten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Figures = NDArray[np.float64]

# The rows. Whole numbers are exact up to 2**53.
SEQUENCES = 0
MAX_SEQUENCES = 1  # that run at once
PREFILL_TOKENS = 2
KV_USAGE = 3
SECONDS_PER_STEP = 4
SECONDS_PER_TOKEN = 5
LAST_PLACED = 6
MOST_SEQUENCES = 7  # with room for one more
MOST_TOKENS = 8
CROWDING = 9  # times that work takes there, for want of KV blocks
NUM_FIGURES = 10


class Keeper(Protocol):
    """Of one worker's figures."""

    def keep_in(self, table: Figures, place: int) -> None:
        """From now on they are in that column of a table, too."""


class LoadTable:
    """A column for each worker, which its LoadTracker keeps up."""

    def __init__(self) -> None:
        self._keepers: Sequence[Keeper] = ()
        self.figures: Figures = np.zeros((NUM_FIGURES, 0))

    def seat(self, keepers: Sequence[Keeper]) -> None:
        """Gives each worker its column, in their order. Those that have left lose theirs."""
        if keepers == self._keepers:
            return
        self._keepers, self.figures = keepers, np.zeros((NUM_FIGURES, len(keepers)))
        for place, keeper in enumerate(keepers):
            keeper.keep_in(self.figures, place)
