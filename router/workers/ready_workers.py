"""The workers that may take a request, cached so that not every worker is asked each time."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Sequence

from quire.errors import NotFound, Unavailable
from quire.runners import GENERATE
from router.workers.base import Worker
from router.workers.eligible import eligible
from router.workers.load_table import LoadTable
from router.workers.ready_set import MOST_NAMINGS, Naming, ReadySet
from router.workers.speed import StepLine

logger = logging.getLogger(__name__)

_MOST_MAKES = 256
_MOST_MODELS = 4096
# Seconds that a new request waits if no worker has been seen ready yet: a router that has just started is still finding
# workers.
_FIRST_SECONDS = 5.0
_NOTE_SECONDS = 0.2


class ReadyWorkers:
    """Maps models to their ready workers. Lookups are cached until `changed`."""

    def __init__(
        self,
        workers: Callable[[], Collection[Worker]],
        clock: Callable[[], float],
        absence_seconds: float,
        table: LoadTable,
        runner: str = GENERATE,
    ) -> None:
        """
        Args:
            absence_seconds: how long after a model's last worker was ready its return is counted on.
            table: the loads of all workers.
            runner: the runner that the requests need.
        """
        self._runner = runner
        self._table = table
        self._workers = workers
        self._clock = clock
        self._absence_seconds = absence_seconds
        self._seen: dict[str, float] = {}  # model → when a worker for it was last seen ready
        self._noted = -math.inf
        self._live: Sequence[Worker] | None = None  # all ready workers, whatever their model
        self._ready: dict[str, ReadySet] = {}
        self._lines: dict[str, StepLine] = {}
        self._unknown: Sequence[StepLine] = ()  # lines without any observation yet
        self._namings: dict[str, Sequence[Naming]] = {}  # model → namings logged last

    def gather(self, model: str) -> ReadySet:
        """The ready workers that serve the model, cached until something changes. A fresh lookup also shares their
        speeds with each other, and notes that the model has ready workers.

        Raises:
            QuireError: there is none; see `eligible`.
        """
        if any(line.known for line in self._unknown):
            # A make has its first steps: its workers use them at once, not from the next heartbeat. Once is enough: the
            # next lookup that finds workers lists what is still unknown.
            self._unknown = ()
            self._ready.clear()
        found = self._ready.get(model)
        if found is None or found.is_outdated(self._table):
            found = self._ready[model] = self._look_for(model)
        return found

    def _look_for(self, model: str) -> ReadySet:
        workers = self._workers()
        try:
            found = eligible(workers, self._look(), model, self._runner)
        except NotFound as error:
            if not self._seen_lately(model):
                raise
            raise Unavailable(f"The engine workers of {model!r} have left.") from error
        if model not in found[0].adapters:  # an adapter that is gone does not come back with a worker
            self._seen[model] = self._clock()
        self._share_speeds(found)
        self._table.seat([worker.load for worker in workers])
        ready = ReadySet(model, found, self._table)
        self._tell_of_namings(model, sorted(ready.namings))
        return ready

    def _tell_of_namings(self, model: str, namings: Sequence[Naming]) -> None:
        if len(namings) < 2 or self._namings.get(model) == namings:
            return
        if len(self._namings) > _MOST_MODELS:
            self._namings.clear()
        self._namings[model] = namings
        sizes = ", ".join(map(str, sorted({size for size, _ in namings})))
        logger.warning(
            "workers of model %r identify their cached blocks in %d different ways, with block sizes of %s tokens; "
            "only the %d most common are looked up. Give all of them the same --block-size, and adapters of the same "
            "name the same weights",
            model, len(namings), sizes, min(len(namings), MOST_NAMINGS),
        )  # fmt: skip

    def patience(self, model: str) -> float:
        """Seconds that a new request may wait for a worker of the model when none is ready."""
        workers = [worker for worker in self._workers() if worker.model_info is None or worker.serves(model)]
        if workers and all(worker.condition.held for worker in workers):
            return 0.0
        if self._seen_lately(model) or any(worker.condition.coming for worker in workers):
            return math.inf
        return 0.0 if model in self._seen else _FIRST_SECONDS

    def changed(self) -> None:
        """To be called when a worker came, went, or changed its state."""
        self._ready.clear()
        self._live = None
        now = self._clock()
        if now - self._noted >= _NOTE_SECONDS:
            self._noted = now
            self._note(self._look(), now)

    def beat(self, ready: Sequence[Worker]) -> None:
        """To be called after all workers were checked, with the ready ones in the order in which they became known."""
        if self._live != ready:
            self._ready.clear()
            self._live = ready
        self._note(ready, self._clock())

    def _look(self) -> Sequence[Worker]:
        """All ready workers, cached until something changes."""
        if self._live is None:
            self._live = [worker for worker in self._workers() if worker.ready]
        return self._live

    def _note(self, ready: Sequence[Worker], now: float) -> None:
        """Notes that the models of these workers have ready workers now."""
        if len(self._seen) > _MOST_MODELS:
            self._seen.clear()
        noted: set[Sequence[str]] = set()
        for worker in ready:
            if worker.names not in noted and worker.model_info is not None:
                noted.add(worker.names)
                self._seen[""] = now
                self._seen.update((name, now) for name in worker.model_info.served_model_names)

    def _seen_lately(self, model: str) -> bool:
        return self._clock() - self._seen.get(model, -math.inf) < self._absence_seconds

    def _share_speeds(self, workers: Sequence[Worker]) -> None:
        """Makes the workers of one make learn from each other's steps."""
        if len(self._lines) > _MOST_MAKES:
            self._lines.clear()
        for worker in workers:
            if worker.make:
                worker.load.learn_from(self._lines.setdefault(worker.make, worker.load.speed.line))
        self._unknown = [line for line in self._lines.values() if not line.known]
