"""Requests for pooling that wait, and whose turn it is."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

from engine_svc.pooling_plan import PooledOutput
from engine_svc.requests.pooling import PoolingRequest


@dataclass(eq=False)
class LivePooling:
    """A request in the books."""

    key: int
    request: PoolingRequest
    rank: int  # by the policy; lower goes first
    arrival_time: float
    held_bytes: int
    next_input: int = 0  # those before it have been handed out
    unfinished: int = 0
    first_scheduled_time: float | None = None
    ended: bool = False
    outputs: list[PooledOutput | None] = field(default_factory=list)

    @property
    def deadline(self) -> float | None:
        """On the engine's clock."""
        timeout = self.request.timeout_seconds
        return None if timeout is None else self.arrival_time + timeout


class PoolingQueue:
    """Hands out inputs, by rank and then in turns: of a request with many of them, others of its rank wait for one at a
    time (start-time fair queueing, Goyal et al. 1996)."""

    def __init__(self) -> None:
        # (rank, turn, key) of requests that have inputs left; one entry each.
        self._entries: list[tuple[int, int, int, LivePooling]] = []
        self._turn = 0  # of the input that was handed out last
        self.num_waiting = 0  # requests of which nothing has been handed out
        self.num_tokens = 0  # of inputs that have not

    def push(self, live: LivePooling) -> None:
        """Takes a new request in."""
        self.num_waiting += 1
        self.num_tokens += live.request.num_tokens
        heapq.heappush(self._entries, (live.rank, self._turn, live.key, live))

    def take(self, budget: int, most: int) -> list[tuple[LivePooling, int]]:
        """The next inputs, by request and place in it: as many as fit the budget of tokens, and one at least."""
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
        """A request has ended: what is left of it is not handed out."""
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
