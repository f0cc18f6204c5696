"""How loaded one worker is."""

from __future__ import annotations

from quire.v1 import common_pb2
from router.policies.base import RouteRequest, WorkerLoad


class LoadTracker:
    """The load of one worker, estimated between its heartbeats.

    What this router has running there it knows exactly and at once; what others have there is the last heartbeat's
    figure less what was ours when it came.
    """

    def __init__(self) -> None:
        self.inflight_requests = 0
        # What this router has there.
        self.own_sequences = 0
        self.own_prefill_tokens = 0
        self._foreign_sequences = 0
        self._foreign_prefill_tokens = 0
        self._kv_usage = 0.0
        self.last: common_pb2.EngineLoad | None = None

    def placed(self, request: RouteRequest) -> None:
        """The request was sent to the worker."""
        self.inflight_requests += 1
        self.own_sequences += request.sequences
        self.own_prefill_tokens += len(request.prompt_token_ids)

    def prefilled(self, request: RouteRequest) -> None:
        """The request's prompt is computed, or need not be any more. Called once for each request placed."""
        self.own_prefill_tokens -= len(request.prompt_token_ids)

    def ended(self, request: RouteRequest) -> None:
        """The request is no longer on the worker."""
        self.inflight_requests -= 1
        self.own_sequences -= request.sequences

    def heartbeat(self, load: common_pb2.EngineLoad) -> None:
        """Takes in the worker's own figures."""
        self.last = load
        self._foreign_sequences = max(0, load.running_sequences + load.waiting_requests - self.own_sequences)
        self._foreign_prefill_tokens = max(0, load.waiting_prefill_tokens - self.own_prefill_tokens)
        self._kv_usage = load.used_kv_blocks / load.total_kv_blocks if load.total_kv_blocks else 0.0

    def estimate(self) -> WorkerLoad:
        """The load now."""
        return WorkerLoad(
            sequences=self.own_sequences + self._foreign_sequences,
            prefill_tokens=self.own_prefill_tokens + self._foreign_prefill_tokens,
            kv_usage=self._kv_usage,
        )
