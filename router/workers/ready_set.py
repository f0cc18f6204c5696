"""The ready workers of one model, and what stays the same of them until something changes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from router.index.members import Members
from router.index.prefix_index import PrefixIndex
from router.workers.base import Worker
from router.workers.load_table import MOST_SEQUENCES, MOST_TOKENS, PREFILL_TOKENS, SEQUENCES, Figures, LoadTable

Places = NDArray[np.intp]  # of some of the workers


class ReadySet:
    """What is told of them is in arrays with an entry for each, in their order."""

    def __init__(self, model: str, workers: Sequence[Worker], table: LoadTable) -> None:
        """
        Args:
            workers: at least one; each has a column of the table.
        """
        self.workers = workers
        self._model = model
        self._figures = table.figures
        self._columns = np.array([worker.load.place for worker in workers], np.intp)
        self._all = len(workers) == table.figures.shape[1]
        self.homes = np.array([worker.home for worker in workers], np.uint64)
        self._is_adapter = any(model in worker.adapters for worker in workers)
        self._makes: dict[str, NDArray[np.bool_]] = {}
        self._members: tuple[int, Members] | None = None

    def is_outdated(self, table: LoadTable) -> bool:
        """Whether workers have got other columns."""
        return self._figures is not table.figures

    def figures(self) -> Figures:
        """Their loads as they are now, (NUM_FIGURES, workers); not to be written to, or kept."""
        return self._figures if self._all else self._figures[:, self._columns]

    def room(self) -> NDArray[np.bool_]:
        """Whether a further request would do more than wait there."""
        figures = self.figures()
        room: NDArray[np.bool_] = figures[SEQUENCES] < figures[MOST_SEQUENCES]
        room &= figures[PREFILL_TOKENS] <= figures[MOST_TOKENS]
        return room

    def of_make(self, make: str) -> NDArray[np.bool_]:
        """Whether they generate the same from the model's requests as workers of that make."""
        found = self._makes.get(make)
        if found is None:
            found = self._makes[make] = np.array([worker.make_for(self._model) == make for worker in self.workers])
        return found

    def lacking_adapter(self) -> NDArray[np.bool_] | None:
        """Whether they would have to bring the adapter to the device that the model is; None where it is none."""
        if not self._is_adapter:
            return None
        model = self._model
        return np.array([model in each.adapters and not each.load.has_at_hand(model) for each in self.workers])

    def members(self, index: PrefixIndex) -> Members:
        """As the index knows them."""
        if self._members is None or self._members[0] != index.joins:
            self._members = index.joins, Members.of([worker.blocks.bit for worker in self.workers])
        return self._members[1]
