"""Metrics of HTTP requests by route, including those that are refused before they reach a model.

They have the names under which FastAPI's usual instrumentation, and so vLLM, exports them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric

from gateway.metrics.prometheus import add_snapshot
from quire.histogram import Histogram

_BY_ROUTE = (0.1, 0.5, 1)
_ALL = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60, 120, 300, 600,
)  # fmt: skip
_NO_ROUTE = "none"


class HttpStatistics:
    """Measurements of this gateway's HTTP requests."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, str]] = Counter()  # by route, method and class of status
        self._by_route: dict[tuple[str, str], Histogram] = defaultdict(lambda: Histogram(_BY_ROUTE))  # and method
        self._all = Histogram(_ALL)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Records a request that has ended.

        Args:
            route: empty if it reached none.
        """
        route = route or _NO_ROUTE
        self._requests[route, method, f"{status // 100}xx"] += 1
        self._by_route[route, method].observe(seconds)
        self._all.observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """Yields the metrics."""
        requests = CounterMetricFamily(
            "http_requests", "Number of HTTP requests to this gateway, by route and status class.",
            labels=["handler", "method", "status"],
        )  # fmt: skip
        for labels, count in self._requests.items():
            requests.add_metric(labels, count)
        yield requests
        by_route = HistogramMetricFamily(
            "http_request_duration_seconds", "Time from a request to the end of its response, in seconds, by route.",
            labels=["handler", "method"],
        )  # fmt: skip
        for pair, histogram in self._by_route.items():
            add_snapshot(by_route, pair, histogram.snapshot())
        yield by_route
        overall = HistogramMetricFamily(
            "http_request_duration_highr_seconds",
            "Time from a request to the end of its response, in seconds, in many buckets.",
            labels=[],
        )
        add_snapshot(overall, (), self._all.snapshot())
        yield overall
