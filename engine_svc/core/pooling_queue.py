"""Waiting pooling requests, and the order in which their inputs run."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class OneShotInput(Protocol):
    """What one step computes for a request."""

    @property
    def token_ids(self) -> Sequence[int]: ...


class OneShotRequest(Protocol):
    """A request whose inputs are each computed in one step: for pooling, or for encoding an image."""

    @property
    def inputs(self) -> Sequence[OneShotInput]: ...

    @property
    def num_tokens(self) -> int: ...

    @property
    def priority(self) -> int: ...

    @property
    def timeout_seconds(self) -> float | None: ...


@dataclass(eq=False)
class LivePooling:
    """A live pooling request."""

    key: int
    request: OneShotRequest
    rank: int  # from the scheduling policy; lower goes first
    arrival_time: float
    held_bytes: int
    next_input: int = 0  # inputs before this index have been handed out
    unfinished: int = 0
    first_scheduled_time: float | None = None
    ended: bool = False
    outputs: list[Any] = field(default_factory=list)  # None for those that are not computed yet

    @property
    def deadline(self) -> float | None:
        """Deadline on the engine's clock; None if there is no timeout."""
        timeout = self.request.timeout_seconds
        return None if timeout is None else self.arrival_time + timeout


class PoolingQueue:
    """Hands out inputs by rank, and within a rank in turns.

    Other requests of the same rank wait for only one input at a time of a request with many (start-time fair queueing,
    Goyal et al. 1996).
    """

    def __init__(self) -> None:
        # (rank, turn, key) of requests that have inputs left; one entry each.
        self._entries: list[tuple[int, int, int, LivePooling]] = []
        self._turn = 0  # turn of the input that was handed out last
        self.num_waiting = 0  # requests of which nothing has been handed out
        self.num_tokens = 0  # tokens of inputs not handed out yet

    def push(self, live: LivePooling) -> None:
        """Adds a new request."""
        self.num_waiting += 1
        self.num_tokens += live.request.num_tokens
        heapq.heappush(self._entries, (live.rank, self._turn, live.key, live))

    def take(self, budget: int, most: int) -> list[tuple[LivePooling, int]]:
        """Up to `most` next inputs, as (request, input index): as many as fit the token budget, but at least one."""
        found: list[tuple[LivePooling, int]] = []
        while self._entries and len(found) < most:
            rank, turn, key, live = self._entries[0]
            count = len(live.request.inputs[live.next_input].token_ids)
            if found and count > budget:
                break
            budget -= count
            found.append((live, live.next_input))
            self._hand_out(live, count)
            self._turn = turn
            if live.next_input < len(live.request.inputs):
                heapq.heapreplace(self._entries, (rank, turn + 1, key, live))
            else:
                heapq.heappop(self._entries)
        return found

    def leave(self, live: LivePooling) -> None:
        """Removes a request that has ended: its remaining inputs are not handed out."""
        live.ended = True
        if not (rest := live.request.inputs[live.next_input :]):
            return
        self._entries = [entry for entry in self._entries if entry[3] is not live]
        heapq.heapify(self._entries)
        self.num_tokens -= sum(len(each.token_ids) for each in rest)
        self.num_waiting -= live.next_input == 0

    def _hand_out(self, live: LivePooling, count: int) -> None:
        self.num_waiting -= live.next_input == 0
        self.num_tokens -= count
        live.next_input += 1
