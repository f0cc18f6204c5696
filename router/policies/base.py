"""What a routing policy sees and what it must do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RouteRequest:
    """A request that needs a worker."""

    request_id: str
    # Empty when the caller named none and there is only one.
    model: str
    prompt_token_ids: Sequence[int]
    # Sequences generated from the prompt, at least 1.
    sequences: int
    cache_salt: str
    priority: int


@dataclass(frozen=True)
class WorkerLoad:
    """Load of one worker now: its last heartbeat, corrected by what this router has placed and finished since."""

    # Sequences running or waiting.
    sequences: int
    # Prompt tokens still to be computed.
    prefill_tokens: int
    # Share of the KV blocks held by live sequences, from 0 to 1.
    kv_usage: float


@dataclass(frozen=True)
class WorkerView:
    """A worker that could take the request: it is ready and serves the model."""

    address: str
    load: WorkerLoad
    # Requests that this router has running there.
    inflight_requests: int


class Policy(ABC):
    """Picks a worker for each request.

    Contract: called on the event loop for every request, so it neither waits nor grows without bound. It may keep
    state between calls; workers come and go, so it must not rely on having seen one before.
    """

    @abstractmethod
    def choose(self, request: RouteRequest, candidates: Sequence[WorkerView]) -> WorkerView:
        """The worker to use.

        Args:
            candidates: at least one, in the order in which the workers became known.

        Returns:
            One of `candidates`.
        """
