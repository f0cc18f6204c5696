"""The workers that may take a request, looked up without asking each of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from router.eligible import eligible
from router.speed import StepLine
from router.worker_port import WorkerPort

_MOST_MAKES = 256


class Roster:
    """Model → ready workers. What it has found stays true until `changed`, which is also called at each pulse."""

    def __init__(self, workers: Callable[[], Collection[WorkerPort]]) -> None:
        self._workers = workers
        self._ready: dict[str, Sequence[WorkerPort]] = {}
        self._lines: dict[str, StepLine] = {}

    def ready(self, model: str) -> Sequence[WorkerPort]:
        """The ready workers that serve the model.

        Raises:
            QuireError: there is none; see `eligible`.
        """
        found = self._ready.get(model)
        if found is None:
            found = self._ready[model] = eligible(self._workers(), model)
            self._share_speeds(found)
        return found

    def changed(self) -> None:
        """A worker came, went, or changed its state."""
        self._ready.clear()

    def _share_speeds(self, workers: Sequence[WorkerPort]) -> None:
        """Workers of one make learn from each other's steps."""
        if len(self._lines) > _MOST_MAKES:
            self._lines.clear()
        for worker in workers:
            if worker.make:
                worker.load.speed.line = self._lines.setdefault(worker.make, worker.load.speed.line)
