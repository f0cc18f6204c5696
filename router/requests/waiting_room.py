"""Requests that no worker has room for, queued by model until each is placed, gives up or is refused.

Room at a worker goes to one of the next requests that the worker has cached, rather than to the first one, which may
have its prefix elsewhere: delay scheduling (Zaharia et al. 2010). So a full fleet goes on finding what it has cached.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from quire.errors import QUEUE_FULL, QUEUE_TIMEOUT, DeadlineExceeded, Overloaded, QuireError, Unavailable
from router.clock import Clock, Timer
from router.placement.policies.base import RouteRequest
from router.requests.fair_queue import Entry, FairQueue

_MOST_MODELS = 64
# Requests among which the next one is picked.
_LOOKAHEAD = 8


class Waiter(Protocol):
    """A request that may wait."""

    request: RouteRequest
    # Deadline in clock time; None means no deadline.
    deadline: float | None
    # Seconds that it has waited for workers in total, and the time at which the current wait began.
    waited: float
    waiting_since: float
    # Set while it waits for a worker.
    entry: Entry[Any] | None
    wait_timer: Timer | None

    @property
    def begun(self) -> bool:
        """Whether it has been on a worker: it must not be refused any more."""


Waiting = TypeVar("Waiting", bound=Waiter)


class WaitingRoom(Generic[Waiting]):
    """Queues of waiting requests, one for each model.

    Contract: every request that enters is placed with `place`, ended with `fail`, or taken out by `leave`.
    """

    def __init__(
        self,
        max_requests: int,
        max_tokens: int,
        max_seconds: float,
        clock: Clock,
        place: Callable[[Waiting], bool],
        fail: Callable[[Waiting, QuireError], None],
        pick: Callable[[Sequence[Waiting]], int | None] = lambda _: 0,
    ) -> None:
        """
        Args:
            place: puts a request on a worker; returns False when none has room. Raises the error that ends the request.
            fail: ends a request with an error.
            pick: the index of the request that suits the workers with room best, 0 if none does better than the first,
                None if none can be placed. By default, requests go in order.
        """
        self._max_requests = max_requests
        self._max_tokens = max_tokens
        self._max_seconds = max_seconds
        self._clock = clock
        self._place = place
        self._fail = fail
        self._pick = pick
        self._queues: dict[str, FairQueue[Waiting]] = {}
        self._calling = False
        self.waiting = 0

    @property
    def tokens(self) -> int:
        """Prompt tokens of all waiting requests."""
        return sum(queue.tokens for queue in list(self._queues.values()))

    def waiting_by_tenant(self) -> Iterator[tuple[str, int]]:
        """Yields (tenant, requests), possibly once per model for a tenant. Safe to call from the thread that collects
        metrics."""
        for queue in list(self._queues.values()):
            yield from queue.waiting_by_tenant().items()

    def by_model(self) -> dict[str, int]:
        """Returns the number of waiting requests for each model."""
        return {model: len(queue) for model, queue in self._queues.items()}

    def tokens_by_model(self) -> dict[str, int]:
        """Returns the prompt tokens of the waiting requests for each model."""
        return {model: queue.tokens for model, queue in self._queues.items()}

    def has_waiting(self, model: str) -> bool:
        """Whether a new request for the model has to wait behind others."""
        return model in self._queues

    def expected_seconds(self, model: str) -> float:
        """How long a new request for the model would wait if the queue stays as it is: as long as the one whose turn it
        is has waited."""
        queue = self._queues.get(model)
        return self._clock.time() - queue.peek()[0].item.waiting_since if queue else 0.0

    def enter(self, stream: Waiting, why_unready: QuireError | None = None, patience: float = math.inf) -> None:
        """Queues a request.

        Args:
            why_unready: the error for a request that waits in vain, because no worker is ready. None means that some
                are.
            patience: seconds that a new request waits at most; one that lost its worker waits as long as any.
        """
        request, victims = stream.request, list[Waiting]()
        if request.model not in self._queues:
            if len(self._queues) >= _MOST_MODELS:  # names are unchecked while no worker is known
                self._fail(
                    stream, why_unready or Overloaded("Requests for too many models are waiting; try again later.")
                )
                return
            self._queues[request.model] = FairQueue(self._max_requests, self._max_tokens)
        queue = self._queues[request.model]
        if stream.begun:
            stream.entry = queue.push_front(stream, request.tenant)
        else:
            stream.entry, victims = queue.push(
                stream, request.tenant, request.priority, request.prompt_tokens, request.tenant_weight
            )
        self.waiting += 1
        stream.waiting_since = self._clock.time()
        for victim in victims:
            self._end_wait(victim)
            self._fail(
                victim,
                Overloaded(
                    f"{len(queue)} requests with {queue.tokens} prompt tokens are already waiting "
                    "(--max-queued-requests, --max-queued-tokens); try again later.",
                    reason=QUEUE_FULL,
                    retry_after_seconds=self.expected_seconds(request.model),
                ),
            )
        if stream.entry is not None:
            seconds = self._max_seconds if stream.begun else min(self._max_seconds, patience)
            when = self._clock.time() + seconds
            if stream.deadline is not None:
                when = min(when, stream.deadline)
            stream.wait_timer = self._clock.call_at(when, self._give_up, stream, why_unready)

    def leave(self, stream: Waiting) -> None:
        """Takes a request out of its queue; does nothing if it is not waiting."""
        if stream.entry is not None:
            self._queues[stream.request.model].remove(stream.entry)
        self._end_wait(stream)

    def call(self) -> None:
        """Places all requests that can be placed now."""
        if not self.waiting or self._calling:
            return
        self._calling = True  # placing a request may fail it, which may call this again
        try:
            for model in list(self._queues):
                self._call_for(model)
        finally:
            self._calling = False

    def _call_for(self, model: str) -> None:
        while (queue := self._queues.get(model)) is not None:
            entries = queue.peek(_LOOKAHEAD)
            stream = entries[0].item
            try:
                picked = self._pick([entry.item for entry in entries])
                if picked is None:
                    return
                stream = entries[picked].item
                if not self._place(stream):
                    return
            except Unavailable:
                return  # no worker is ready: it keeps waiting, as long as it may
            except QuireError as error:
                self.leave(stream)
                self._fail(stream, error)
                continue
            for entry in entries[:picked]:
                entry.passed_over += 1
            if stream.entry is not None:
                queue.let_in(stream.entry)
            self._end_wait(stream)

    def _give_up(self, stream: Waiting, why_unready: QuireError | None) -> None:
        self.leave(stream)
        if stream.deadline is not None and self._clock.time() >= stream.deadline:
            error: QuireError = DeadlineExceeded(
                "The request's timeout_ms ran out while it waited for a worker.", parameter="timeout_ms"
            )
        else:
            error = why_unready or Overloaded(
                f"No worker had room for the request within {self._max_seconds:g} s (--max-queue-seconds); try again "
                "later.",
                reason=QUEUE_TIMEOUT,
                retry_after_seconds=self._max_seconds,
            )
        self._fail(stream, error)

    def _end_wait(self, stream: Waiting) -> None:
        if stream.entry is None:
            return
        stream.entry = None
        stream.waited += self._clock.time() - stream.waiting_since
        self.waiting -= 1
        if stream.wait_timer is not None:
            stream.wait_timer.cancel()
            stream.wait_timer = None
        if not len(self._queues[stream.request.model]):
            del self._queues[stream.request.model]
