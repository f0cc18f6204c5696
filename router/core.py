"""The router without its wire: what is the same behind gRPC, in simulations and in benchmarks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from random import Random

from quire.errors import QuireError
from quire.options.router import RouterOptions
from quire.runners import POOLING
from quire.seeds import SeedSource
from router.clock import Clock
from router.index.prefix_index import PrefixIndex
from router.metrics import RouterMetrics
from router.placement.placement import PlacementTable
from router.placement.policies.registry import make_policy
from router.requests.aliases import Aliases
from router.requests.dispatch import Dispatcher
from router.requests.pooling import PoolDispatcher
from router.requests.sessions import Stream
from router.workers.base import Worker
from router.workers.load_table import LoadTable
from router.workers.outlier_ejection import OutlierEjection
from router.workers.ready_workers import ReadyWorkers

# Between two slices of housekeeping, with and without more of it to do.
_BUSY_SECONDS = 0.01
_IDLE_SECONDS = 0.25


class RouterCore:
    """Index, placement and dispatch over some workers, put together."""

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
            workers: all that are known now.
            random: for seeds, and for policies that draw.

        Raises:
            StartupError: an option is wrong.
        """
        self.aliases = Aliases.parse(options.model_alias)
        self.index = PrefixIndex(options.max_index_blocks, clock.time)
        loads = LoadTable()
        self._ready_workers = ReadyWorkers(workers, clock.time, options.max_absence_seconds, loads)
        self._clock = clock
        self._swept = clock.time()
        self._outliers = OutlierEjection(workers, clock.time, metrics.ejections.inc)
        self.table: PlacementTable[Stream] = PlacementTable(
            self._ready_workers, self.index, options.routing_policy, make_policy(options, random), clock, metrics
        )
        self.dispatcher = Dispatcher(
            self.table, self._outliers, clock, metrics, options, self.aliases, SeedSource(generator=random)
        )
        self._ready_for_pooling = ReadyWorkers(workers, clock.time, options.max_absence_seconds, loads, POOLING)
        self.pooling = PoolDispatcher(self._ready_for_pooling, self._outliers, clock, metrics, options, self.aliases)

    def on_change(self) -> None:
        """Workers have come, gone, or changed."""
        self._ready_workers.changed()
        self._ready_for_pooling.changed()
        self._call_waiting()

    def on_beat(self, ready: Sequence[Worker]) -> None:
        """Somebody has looked at all workers, a few times a second, and these are ready."""
        self._ready_workers.beat(ready)
        self._ready_for_pooling.beat(ready)
        self._call_waiting()

    def _call_waiting(self) -> None:
        self.dispatcher.on_change()
        self.pooling.on_change()

    def on_lost(self, worker: Worker, error: QuireError) -> None:
        """A worker's session broke."""
        self.dispatcher.on_lost(worker, error)
        self.pooling.on_lost(worker, error)

    async def drain(self) -> None:
        """Takes nothing new; returns when nothing runs."""
        await asyncio.gather(self.dispatcher.drain(), self.pooling.drain())

    def waiting_by_model(self) -> dict[str, int]:
        """How many requests wait for each model."""
        return {**self.dispatcher.waiting.by_model(), **self.pooling.waiting.by_model()}

    def keep_house(self) -> float:
        """A slice of what must be done now and then; returns the seconds until the next one."""
        now = self._clock.time()
        if now - self._swept > 0.8 * _IDLE_SECONDS:
            self._swept = now
            self._outliers.sweep()
        return _BUSY_SECONDS if self.index.clean() else _IDLE_SECONDS
