"""The workers that may take a request, looked up without asking each of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from router.eligible import eligible
from router.worker_port import WorkerPort


class Roster:
    """Model → ready workers. What it has found stays true until `changed`, which is also called at each pulse."""

    def __init__(self, workers: Callable[[], Collection[WorkerPort]]) -> None:
        self._workers = workers
        self._ready: dict[str, Sequence[WorkerPort]] = {}

    def ready(self, model: str) -> Sequence[WorkerPort]:
        """The ready workers that serve the model.

        Raises:
            QuireError: there is none; see `eligible`.
        """
        found = self._ready.get(model)
        if found is None:
            found = self._ready[model] = eligible(self._workers(), model)
            _lend_speed(found)
        return found

    def changed(self) -> None:
        """A worker came, went, or changed its state."""
        self._ready.clear()


def _lend_speed(workers: Sequence[WorkerPort]) -> None:
    """Gives those that have not told their speed one that has: a fast fleet would shun who is taken to be slow."""
    known = next((worker.load for worker in workers if worker.load.speed.known), None)
    for worker in workers:
        if known is not None and not worker.load.speed.known:
            worker.load.assume_speed(known)
