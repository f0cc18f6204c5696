"""The ready workers of one model, with everything about them that stays constant until something changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from router.index.members import Members
from router.index.prefix_index import PrefixIndex
from router.workers.base import Worker
from router.workers.load_table import MOST_SEQUENCES, MOST_TOKENS, PREFILL_TOKENS, SEQUENCES, Figures, LoadTable

Places = NDArray[np.intp]  # indices of workers
Naming = tuple[int, str]  # block size in tokens, and the revision of the adapter in use; empty for none

# Limit on the number of namings for which a prompt's blocks are hashed.
MOST_NAMINGS = 4


@dataclass(frozen=True, slots=True, eq=False)
class AlikeCaches:
    """Workers that name the same blocks alike."""

    naming: Naming
    places: Places
    members: Members


def naming_of(worker: Worker, model: str) -> Naming:
    """How the worker names the blocks of the model's requests."""
    return worker.model_info.block_size if worker.model_info else 0, worker.adapters.get(model, "")


class ReadySet:
    """The ready workers of one model. Arrays have an entry per worker, in order."""

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
        places: dict[Naming, list[int]] = defaultdict(list)
        for place, worker in enumerate(workers):
            places[naming_of(worker, model)].append(place)
        # Most common first; empty if no worker has reported how it names blocks.
        self.namings = sorted((naming for naming in places if naming[0]), key=lambda each: -len(places[each]))
        self._places = [places[naming] for naming in self.namings[:MOST_NAMINGS]]
        self._caches: tuple[int, list[AlikeCaches]] | None = None
        # Whether each worker computes prompts for others, which load its blocks; None if none does.
        makes = {worker.make_for(model) for worker in workers if worker.make and not worker.is_producer}
        prefills = np.array([worker.is_producer and worker.make_for(model) in makes for worker in workers])
        self.prefills: NDArray[np.bool_] | None = prefills if prefills.any() else None
        # Whether other workers can pull blocks from each, and whether it pulls theirs.
        self.lets_pull = np.array([worker.lets_pull for worker in workers])
        self.pulls = np.array([worker.pulls for worker in workers])

    def is_outdated(self, table: LoadTable) -> bool:
        """Whether the workers have been given other columns."""
        return self._figures is not table.figures

    def figures(self) -> Figures:
        """The workers' loads as they are now, (NUM_FIGURES, workers); must not be written to, or kept."""
        return self._figures if self._all else self._figures[:, self._columns]

    def room(self, is_prefilled: bool = False) -> NDArray[np.bool_]:
        """Whether each worker has room: a further request would not just wait there.

        Args:
            is_prefilled: the request has no prompt to compute.
        """
        figures = self.figures()
        room: NDArray[np.bool_] = figures[SEQUENCES] < figures[MOST_SEQUENCES]
        if not is_prefilled:
            room &= figures[PREFILL_TOKENS] <= figures[MOST_TOKENS]
        return room

    def of_make(self, make: str) -> NDArray[np.bool_]:
        """Whether each worker generates the same from the model's requests as workers of that make."""
        found = self._makes.get(make)
        if found is None:
            found = self._makes[make] = np.array([worker.make_for(self._model) == make for worker in self.workers])
        return found

    def lacking_adapter(self) -> NDArray[np.bool_] | None:
        """Whether each worker would have to load the adapter named by the model onto the device; None if the model is
        no adapter."""
        if not self._is_adapter:
            return None
        model = self._model
        return np.array([model in each.adapters and not each.load.has_at_hand(model) for each in self.workers])

    def caches(self, index: PrefixIndex) -> Sequence[AlikeCaches]:
        """The groups of workers whose caches are looked up, with their current bits in the index."""
        if self._caches is None or self._caches[0] != index.joins:
            self._caches = (
                index.joins,
                [
                    AlikeCaches(
                        naming,
                        np.array(places, np.intp),
                        Members.of(self.workers[place].blocks.bit for place in places),
                    )
                    for naming, places in zip(self.namings, self._places, strict=False)
                ],
            )
        return self._caches[1]
