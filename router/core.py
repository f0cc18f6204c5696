"""The router without its transport: the part shared by the gRPC server, simulations and benchmarks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from random import Random

from quire.errors import QuireError
from quire.memory_guard import MemoryGuard
from quire.options.router import RouterOptions
from quire.runners import GENERATE, POOLING
from quire.seeds import SeedSource
from router.autoscaling import Autoscaling
from router.clock import Clock
from router.index.prefix_index import PrefixIndex
from router.metrics import RouterMetrics
from router.placement.encoders import Encoders
from router.placement.placement import PlacementTable
from router.placement.policies.registry import make_policy
from router.requests.admission import Admission
from router.requests.aliases import Aliases
from router.requests.dispatch import Dispatcher
from router.requests.pooling import PoolDispatcher
from router.requests.recorder import RequestRecorder
from router.requests.sessions import Stream
from router.workers.base import Worker
from router.workers.load_table import LoadTable
from router.workers.outlier_ejection import OutlierEjection
from router.workers.ready_workers import ReadyWorkers

# Seconds between two slices of housekeeping: while more is left to do, and otherwise.
_BUSY_SECONDS = 0.01
_IDLE_SECONDS = 0.25


class RouterCore:
    """Ties index, placement and dispatch together for a set of workers."""

    def __init__(
        self,
        options: RouterOptions,
        workers: Callable[[], Collection[Worker]],
        clock: Clock,
        metrics: RouterMetrics,
        random: Random,
    ) -> None:
        """
        Args:
            workers: returns all workers known now.
            random: source of seeds, and of the draws of randomized policies.

        Raises:
            StartupError: an option is wrong.
        """
        self.aliases = Aliases.parse(options.model_alias)
        self.index = PrefixIndex(options.max_index_blocks, clock.time)
        self.memory = MemoryGuard()
        admission = Admission(options.max_inflight_requests, self.memory)
        loads = LoadTable()
        self._encoders = Encoders(workers)

        def serving() -> Collection[Worker]:
            return [worker for worker in workers() if not worker.encodes_only]

        self._ready_workers = ReadyWorkers(serving, clock.time, options.max_absence_seconds, loads)
        self._clock = clock
        self._swept = clock.time()
        self._outliers = OutlierEjection(workers, clock.time, metrics.ejections.inc)
        self.table: PlacementTable[Stream] = PlacementTable(
            self._ready_workers, self.index, options, make_policy(options, random), clock, metrics, self._encoders
        )
        self.recorder = RequestRecorder(Path(options.record_requests)) if options.record_requests else None
        self.dispatcher = Dispatcher(
            self.table, self._outliers, clock, metrics, options, self.aliases, admission,
            SeedSource(generator=random), self.recorder,
        )  # fmt: skip
        self._ready_for_pooling = ReadyWorkers(serving, clock.time, options.max_absence_seconds, loads, POOLING)
        self.pooling = PoolDispatcher(
            self._ready_for_pooling, self._outliers, clock, metrics, options, self.aliases, admission, self.recorder
        )
        self.autoscaling = Autoscaling(
            workers, {GENERATE: self.dispatcher.waiting, POOLING: self.pooling.waiting},
            options.autoscaling_target_utilization, clock.time,
        )  # fmt: skip

    def on_change(self) -> None:
        """To be called when workers have come, gone, or changed."""
        self._encoders.changed()
        self._ready_workers.changed()
        self._ready_for_pooling.changed()
        self._call_waiting()

    def on_beat(self, ready: Sequence[Worker]) -> None:
        """To be called a few times a second, after all workers were checked, with those that are ready."""
        self._encoders.changed()
        ready = [worker for worker in ready if not worker.encodes_only]
        self._ready_workers.beat(ready)
        self._ready_for_pooling.beat(ready)
        self._call_waiting()

    def _call_waiting(self) -> None:
        self.dispatcher.on_change()
        self.pooling.on_change()

    def on_lost(self, worker: Worker, error: QuireError) -> None:
        """To be called when a worker's session broke."""
        self.dispatcher.on_lost(worker, error)
        self.pooling.on_lost(worker, error)

    async def drain(self) -> None:
        """Refuses new requests; returns once none is running."""
        await asyncio.gather(self.dispatcher.drain(), self.pooling.drain())

    def waiting_by_model(self) -> dict[str, int]:
        """Returns the number of waiting requests for each model."""
        return {**self.dispatcher.waiting.by_model(), **self.pooling.waiting.by_model()}

    def keep_house(self) -> float:
        """Does a slice of the periodic housekeeping; returns the seconds until the next one."""
        now = self._clock.time()
        if now - self._swept > 0.8 * _IDLE_SECONDS:
            self._swept = now
            self._outliers.sweep()
            self.autoscaling.sample()
        return _BUSY_SECONDS if self.index.clean() else _IDLE_SECONDS
