"""Waiting pooling requests, and the order in which their inputs run."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from engine_svc.adapters.adapter import Adapter
from engine_svc.pooling_plan import OneShotInput, Output


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

    @property
    def request_id(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def adapter(self) -> Adapter | None: ...


Request = TypeVar("Request", bound=OneShotRequest)


@dataclass(eq=False)
class LivePooling(Generic[Request, Output]):
    """A live pooling request."""

    key: int
    request: Request
    rank: int  # from the scheduling policy; lower goes first
    arrival_time: float
    held_bytes: int
    next_input: int = 0  # inputs before this index have been handed out
    unfinished: int = 0
    first_scheduled_time: float | None = None
    ended: bool = False
    adapter_slot: int = 0  # device slot while it holds one: see AdapterSlots
    outputs: list[Output | None] = field(default_factory=list)  # None for those that are not computed yet

    @property
    def adapter(self) -> Adapter | None:
        """See AdapterUser."""
        return self.request.adapter

    @property
    def order(self) -> tuple[int, int, int]:
        """See AdapterUser."""
        return self.rank, self.key, 0

    @property
    def deadline(self) -> float | None:
        """Deadline on the engine's clock; None if there is no timeout."""
        timeout = self.request.timeout_seconds
        return None if timeout is None else self.arrival_time + timeout


class PoolingQueue(Generic[Request, Output]):
    """Hands out inputs by rank, and within a rank in turns.

    Other requests of the same rank wait for only one input at a time of a request with many (start-time fair queueing,
    Goyal et al. 1996).
    """

    def __init__(self) -> None:
        # (rank, turn, key) of requests that have inputs left; one entry each.
        self._entries: list[tuple[int, int, int, LivePooling[Request, Output]]] = []
        self._turn = 0  # turn of the input that was handed out last
        self.num_waiting = 0  # requests of which nothing has been handed out
        self.num_tokens = 0  # tokens of inputs not handed out yet

    def push(self, live: LivePooling[Request, Output]) -> None:
        """Adds a new request."""
        self.num_waiting += 1
        self.num_tokens += live.request.num_tokens
        self.put_back(live)

    def put_back(self, live: LivePooling[Request, Output]) -> None:
        """Queues the remaining inputs of a request that `take` has set aside."""
        heapq.heappush(self._entries, (live.rank, self._turn, live.key, live))

    def take(
        self, budget: int, most: int, admits: Callable[[LivePooling[Request, Output]], bool]
    ) -> list[tuple[LivePooling[Request, Output], int]]:
        """Up to `most` next inputs, as (request, input index): as many as fit the token budget, but at least one.

        Args:
            admits: whether a request may run now; one that may not is set aside.
        """
        found: list[tuple[LivePooling[Request, Output], int]] = []
        while self._entries and len(found) < most:
            rank, turn, key, live = self._entries[0]
            count = len(live.request.inputs[live.next_input].token_ids)
            if found and count > budget:
                break
            if not admits(live):
                heapq.heappop(self._entries)
                continue
            budget -= count
            found.append((live, live.next_input))
            self._hand_out(live, count)
            self._turn = turn
            if live.next_input < len(live.request.inputs):
                heapq.heapreplace(self._entries, (rank, turn + 1, key, live))
            else:
                heapq.heappop(self._entries)
        return found

    def leave(self, live: LivePooling[Request, Output]) -> None:
        """Removes a request that has ended: its remaining inputs are not handed out."""
        live.ended = True
        if not (rest := live.request.inputs[live.next_input :]):
            return
        self._entries = [entry for entry in self._entries if entry[3] is not live]
        heapq.heapify(self._entries)
        self.num_tokens -= sum(len(each.token_ids) for each in rest)
        self.num_waiting -= live.next_input == 0

    def _hand_out(self, live: LivePooling[Request, Output], count: int) -> None:
        self.num_waiting -= live.next_input == 0
        self.num_tokens -= count
        live.next_input += 1
