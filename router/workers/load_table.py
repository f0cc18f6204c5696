"""The loads of all workers side by side in one array, so that placing over a thousand is as fast as over ten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Figures = NDArray[np.float64]

# Row numbers. Whole numbers are exact up to 2**53.
SEQUENCES = 0
MAX_SEQUENCES = 1  # sequences it runs at once
PREFILL_TOKENS = 2
KV_USAGE = 3
SECONDS_PER_STEP = 4
SECONDS_PER_TOKEN = 5
LAST_PLACED = 6
MOST_SEQUENCES = 7  # below which it has room for one more
MOST_TOKENS = 8
CROWDING = 9  # factor by which work takes longer there, when KV blocks run short
NUM_FIGURES = 10


class Keeper(Protocol):
    """Keeps one worker's figures up to date."""

    def keep_in(self, table: Figures, place: int) -> None:
        """From now on also writes the figures to column `place` of the table."""


class LoadTable:
    """A table with a column for each worker, kept up to date by its LoadTracker."""

    def __init__(self) -> None:
        self._keepers: Sequence[Keeper] = ()
        self.figures: Figures = np.zeros((NUM_FIGURES, 0))

    def seat(self, keepers: Sequence[Keeper]) -> None:
        """Gives each worker its column, in order. Workers that have left lose theirs."""
        if keepers == self._keepers:
            return
        self._keepers, self.figures = keepers, np.zeros((NUM_FIGURES, len(keepers)))
        for place, keeper in enumerate(keepers):
            keeper.keep_in(self.figures, place)
