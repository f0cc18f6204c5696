"""The router's Prometheus metrics."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from router.state import State
from router.worker import Worker

_OUTCOMES = ("finished", "failed", "aborted", "refused")


class RouterMetrics:
    """Counters that the dispatcher keeps up."""

    def __init__(self, registry: CollectorRegistry) -> None:
        requests = Counter("quire_router_requests", "Requests ended, by outcome.", ["outcome"], registry=registry)
        self._requests = {outcome: requests.labels(outcome) for outcome in _OUTCOMES}
        self.deltas = Counter("quire_router_deltas", "Deltas received from workers.", registry=registry)
        self.retries = Counter("quire_router_retries", "Requests started anew on another worker.", registry=registry)

    def count(self, outcome: str) -> None:
        """A request has ended: finished, failed, aborted or refused."""
        self._requests[outcome].inc()


class FleetCollector(Collector):
    """Reads the workers' states when Prometheus asks, from its thread."""

    def __init__(self, workers: Callable[[], Iterable[Worker]], sessions: Callable[[], int]) -> None:
        self._workers = workers
        self._sessions = sessions

    def collect(self) -> Iterable[GaugeMetricFamily]:
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
        yield GaugeMetricFamily("quire_router_sessions", "Sessions open now.", value=self._sessions())
