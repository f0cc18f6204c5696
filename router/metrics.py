"""The router's Prometheus metrics."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from router.index.prefix_index import PrefixIndex
from router.requests.waiting_room import WaitingRoom
from router.workers.base import WorkerPort
from router.workers.state import State

_DECISION_BUCKETS = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 2e-2)
_MOST_TENANTS = 20
_OUTCOMES = ("finished", "failed", "aborted", "refused")


class RouterMetrics:
    """Counters that the dispatcher keeps up."""

    def __init__(self, registry: CollectorRegistry) -> None:
        requests = Counter("quire_router_requests", "Requests ended, by outcome.", ["outcome"], registry=registry)
        self._requests = {outcome: requests.labels(outcome) for outcome in _OUTCOMES}
        self.deltas = Counter("quire_router_deltas", "Deltas received from workers.", registry=registry)
        self.migrations = Counter(
            "quire_router_migrations", "Requests that went on at another worker.", registry=registry
        )
        self.prompt_tokens = Counter(
            "quire_router_prompt_tokens", "Prompt tokens of ended requests.", registry=registry
        )
        self.cached_tokens = Counter(
            "quire_router_cached_prompt_tokens", "Those that workers found in their caches.", registry=registry
        )
        self.ejections = Counter(
            "quire_router_ejections", "Times that a worker was given a rest from new requests.", registry=registry
        )
        self.out_of_step = Counter(
            "quire_router_index_resyncs", "Times that a worker's cache was taken in anew, as its events did not fit.",
            registry=registry,
        )  # fmt: skip
        self._decision = Histogram(
            "quire_router_decision_seconds", "Time to pick a worker.", buckets=_DECISION_BUCKETS, registry=registry
        )
        self._error = Histogram(
            "quire_router_prediction_error_blocks", "Cached blocks found, against those predicted.",
            buckets=(0, 1, 2, 4, 8, 16, 64, 256), registry=registry,
        )  # fmt: skip

    def placed(self, seconds: float) -> None:
        """A decision took so long."""
        self._decision.observe(seconds)

    def predicted(self, predicted: int, found: int, block_size: int) -> None:
        """So many cached tokens were expected, and so many the worker found."""
        self._error.observe(abs(predicted - found) / max(1, block_size))

    def count(self, outcome: str) -> None:
        """A request has ended: finished, failed, aborted or refused."""
        self._requests[outcome].inc()


class FleetCollector(Collector):
    """Reads the workers' states when Prometheus asks, from its thread."""

    def __init__(
        self,
        workers: Callable[[], Iterable[WorkerPort]],
        sessions: Callable[[], int],
        waiting: WaitingRoom,
        index: PrefixIndex,
    ) -> None:
        self._workers = workers
        self._sessions = sessions
        self._waiting = waiting
        self._index = index

    def collect(self) -> Iterable[Metric]:
        """Called by Prometheus."""
        workers = list(self._workers())
        inflight = GaugeMetricFamily(
            "quire_router_worker_inflight_requests", "Requests of this router on each worker.", labels=["worker"]
        )
        for worker in workers:
            inflight.add_metric([worker.address], worker.load.inflight_requests)
        yield inflight
        tally = Tally(worker.condition.state for worker in workers)
        states = GaugeMetricFamily("quire_router_workers", "Workers by state.", labels=["state"])
        for state in State:
            states.add_metric([state.value], tally[state])
        yield states
        yield from self._collect_queue()
        yield GaugeMetricFamily("quire_router_sessions", "Sessions open now.", value=self._sessions())
        yield GaugeMetricFamily("quire_router_index_blocks", "Blocks in the prefix index.", value=len(self._index))
        sampling = self._index.device.sampling
        yield GaugeMetricFamily(
            "quire_router_index_sampling", "One in so many blocks is kept, for want of room.", value=sampling
        )

    def _collect_queue(self) -> Iterable[Metric]:
        waiting: Tally[str] = Tally()
        for tenant, count in self._waiting.waiting_by_tenant():
            waiting[tenant] += count
        queued = GaugeMetricFamily(
            "quire_router_queued_requests", "Requests that wait for a worker with room.", labels=["tenant"]
        )
        most = waiting.most_common(_MOST_TENANTS)
        for tenant, count in most:
            queued.add_metric([tenant], count)
        if rest := waiting.total() - sum(count for _, count in most):
            queued.add_metric(["others"], rest)
        yield queued
        tokens = self._waiting.tokens
        yield GaugeMetricFamily("quire_router_queued_tokens", "Their prompt tokens.", value=tokens)
