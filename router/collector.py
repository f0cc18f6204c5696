"""The router's Prometheus metrics that are read from its tables at each scrape."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from quire.memory_guard import MemoryGuard
from router.autoscaling import Group, Wanted
from router.index.prefix_index import PrefixIndex
from router.requests.waiting_room import WaitingRoom
from router.workers.base import Worker
from router.workers.state import State

_MOST_TENANTS = 20


class StateCollector(Collector):
    """Reads the workers' states when Prometheus scrapes, from the scraping thread."""

    def __init__(
        self,
        workers: Callable[[], Iterable[Worker]],
        sessions: Callable[[], int],
        waiting: Sequence[WaitingRoom[Any]],
        index: PrefixIndex,
        wanted: Callable[[], Mapping[Group, Wanted]],
        memory: MemoryGuard,
    ) -> None:
        self._workers = workers
        self._sessions = sessions
        self._waiting = waiting
        self._index = index
        self._wanted = wanted
        self._memory = memory

    def collect(self) -> Iterable[Metric]:
        """Yields all metrics; called by Prometheus."""
        workers = list(self._workers())
        yield from _of_each(workers)
        tally = Tally(worker.condition.state for worker in workers)
        states = GaugeMetricFamily("quire_router_workers", "Workers by state.", labels=["state"])
        for state in State:
            states.add_metric([state.value], tally[state])
        yield states
        yield from self._collect_queue()
        yield self._collect_wanted()
        yield GaugeMetricFamily("quire_router_sessions", "Open sessions.", value=self._sessions())
        yield GaugeMetricFamily("quire_router_index_blocks", "Blocks in the prefix index.", value=len(self._index))
        yield CounterMetricFamily(
            "quire_router_memory_refusals",
            "Requests refused because this router had nearly used up its memory limit.",
            value=self._memory.num_refused,
        )
        sampling = self._index.device.sampling
        yield GaugeMetricFamily(
            "quire_router_index_sampling",
            "The prefix index keeps one in this many blocks; above 1 when it is short of space.",
            value=sampling,
        )

    def _collect_queue(self) -> Iterable[Metric]:
        waiting: Tally[str] = Tally()
        for room in self._waiting:
            for tenant, count in room.waiting_by_tenant():
                waiting[tenant] += count
        queued = GaugeMetricFamily(
            "quire_router_queued_requests", "Requests waiting for a worker with room, by tenant.", labels=["tenant"]
        )
        most = waiting.most_common(_MOST_TENANTS)
        for tenant, count in most:
            queued.add_metric([tenant], count)
        if rest := waiting.total() - sum(count for _, count in most):
            queued.add_metric(["others"], rest)
        yield queued
        tokens = sum(room.tokens for room in self._waiting)
        yield GaugeMetricFamily(
            "quire_router_queued_tokens", "Prompt tokens of requests waiting for a worker with room.", value=tokens
        )

    def _collect_wanted(self) -> Metric:
        wanted = GaugeMetricFamily(
            "quire_router_wanted_workers",
            "Workers that the present load needs at the target utilization: for the requests at workers, which all "
            "routers report alike, plus those for this router's queue.",
            labels=["model_name", "role", "load"],
        )
        for group, (workers, queue) in self._wanted().items():
            wanted.add_metric([*group, "workers"], workers)
            wanted.add_metric([*group, "queue"], queue)
        return wanted


def _of_each(workers: Iterable[Worker]) -> Iterable[Metric]:
    """Yields the metrics of each worker; the label `engine` is its data-parallel rank, empty without one."""
    labels = ["worker", "engine"]
    inflight = GaugeMetricFamily(
        "quire_router_worker_inflight_requests", "Requests of this router in flight on each worker.", labels=labels
    )
    sequences = GaugeMetricFamily(
        "quire_router_worker_sequences", "Sequences on each worker, from all routers.", labels=labels
    )
    usage = GaugeMetricFamily(
        "quire_router_worker_kv_usage",
        "Fraction of each worker's KV cache held by live sequences, from 0 to 1.",
        labels=labels,
    )
    for worker in workers:
        info = worker.model_info
        rank = str(info.data_parallel_rank) if info and info.HasField("data_parallel_rank") else ""
        for family, value in (
            (inflight, worker.load.inflight_requests), (sequences, worker.load.sequences), (usage, worker.load.kv_usage)
        ):  # fmt: skip
            family.add_metric([worker.address, rank], value)
    yield from (inflight, sequences, usage)
