"""The router's Prometheus metrics that are counted as events happen. `collector.py` has the rest."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

_DECISION_BUCKETS = (2e-5, 5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 2e-2)
_QUEUE_BUCKETS = (0.0, 0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60)
_OUTCOMES = ("finished", "failed", "aborted", "refused")


class RouterMetrics:
    """Counters that the dispatcher updates."""

    def __init__(self, registry: CollectorRegistry) -> None:
        requests = Counter("quire_router_requests", "Requests ended, by outcome.", ["outcome"], registry=registry)
        self._requests = {outcome: requests.labels(outcome) for outcome in _OUTCOMES}
        self.deltas = Counter("quire_router_deltas", "Deltas received from workers.", registry=registry)
        self.migrations = Counter("quire_router_migrations", "Moves of a request to another worker.", registry=registry)
        self.hand_overs = Counter(
            "quire_router_hand_overs", "Requests that a worker handed over to another one, having computed their "
            "prompts.", registry=registry,
        )  # fmt: skip
        retries = Counter(
            "quire_router_retries",
            "Requests that a worker refused or failed before their first token: retried on another worker (retried), "
            "or not retried because too many others are being retried (over_budget).", ["result"], registry=registry,
        )  # fmt: skip
        self.retried, self.over_budget = retries.labels("retried"), retries.labels("over_budget")
        self.prompt_tokens = Counter(
            "quire_router_prompt_tokens", "Prompt tokens of finished requests.", registry=registry
        )
        self.cached_tokens = Counter(
            "quire_router_cached_prompt_tokens",
            "Prompt tokens of finished requests found in the workers' caches.",
            registry=registry,
        )
        self.ejections = Counter(
            "quire_router_ejections",
            "Ejections of a worker, which then gets no new requests for a while.",
            registry=registry,
        )
        self.out_of_step = Counter(
            "quire_router_index_resyncs", "Times that a worker's cache was reindexed because its events did not match.",
            registry=registry,
        )  # fmt: skip
        self._queue = Histogram(
            "quire_router_queue_seconds", "Total time that a request waited in the router for a worker, in seconds.",
            buckets=_QUEUE_BUCKETS, registry=registry,
        )  # fmt: skip
        self._decision = Histogram(
            "quire_router_decision_seconds",
            "Time to choose a worker, in seconds.",
            buckets=_DECISION_BUCKETS,
            registry=registry,
        )
        self._error = Histogram(
            "quire_router_prediction_error_blocks", "Difference between the predicted and the actual cached blocks.",
            buckets=(0, 1, 2, 4, 8, 16, 64, 256), registry=registry,
        )  # fmt: skip

    def placed(self, seconds: float) -> None:
        """Records the time that a placement decision took."""
        self._decision.observe(seconds)

    def predicted(self, predicted: int, found: int, block_size: int) -> None:
        """Records how many cached tokens were predicted for a request, and how many the worker found."""
        self._error.observe(abs(predicted - found) / max(1, block_size))

    def count(self, outcome: str, waited: float) -> None:
        """Counts an ended request by outcome (finished, failed, aborted or refused), with the seconds it spent
        waiting."""
        self._requests[outcome].inc()
        self._queue.observe(waited)
