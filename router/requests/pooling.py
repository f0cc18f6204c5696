"""Requests to pooling models: each is one call to the least loaded worker, and to another one if that is lost.

What a lost worker was computing is computed again elsewhere; the caller only sees it take longer.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from quire.bounds import MAX_CALLER_NAME_LENGTH, check_count, tenant_weight
from quire.errors import (
    ENGINE_FAULT,
    WORKER_LOST,
    DeadlineExceeded,
    Overloaded,
    QuireError,
    Unavailable,
)
from quire.options.router import RouterOptions
from router.clock import Clock, Timer
from router.metrics import RouterMetrics
from router.placement.policies.base import RouteRequest
from router.requests.admission import Admission
from router.requests.aliases import Aliases
from router.requests.fair_queue import Entry
from router.requests.recorder import RequestRecorder
from router.requests.retry_budget import RetryBudget
from router.requests.waiting_room import WaitingRoom
from router.workers.base import Worker
from router.workers.load_table import LAST_PLACED, MOST_TOKENS, PREFILL_TOKENS
from router.workers.outlier_ejection import OutlierEjection
from router.workers.ready_workers import ReadyWorkers

if TYPE_CHECKING:
    from quire.v1 import common_pb2

logger = logging.getLogger(__name__)

_MOST_ATTEMPTS = 3
# For this long a request does not go back to the worker it was just taken from, even if that is the only one.
_AVOID_SECONDS = 1.0


def _future() -> asyncio.Future[Worker]:
    return asyncio.get_running_loop().create_future()


@dataclass(eq=False, slots=True, kw_only=True)
class PoolCall:
    """One pooling request from start to answer: at a worker, or waiting for one."""

    request: RouteRequest
    message: common_pb2.PoolRequest
    arrived: float
    deadline: float | None
    # Resolves once a worker was picked.
    placed: asyncio.Future[Worker] = field(default_factory=_future)
    worker: Worker | None = None
    # The call to the worker, and the error if that worker was lost.
    answer: asyncio.Task[common_pb2.PoolResponse] | None = None
    lost: QuireError | None = None
    attempts: int = 0
    avoid: Worker | None = None
    avoid_until: float = 0.0
    retrying: bool = False  # it counts against the retry budget
    # See Waiter.
    waited: float = 0.0
    waiting_since: float = 0.0
    entry: Entry[PoolCall] | None = None
    wait_timer: Timer | None = None

    @property
    def begun(self) -> bool:
        """Whether it has been at a worker: it must not be refused any more."""
        return self.attempts > 0


class PoolDispatcher:
    """Runs callers' pooling requests on workers. Used from the event loop only."""

    def __init__(
        self,
        ready_workers: ReadyWorkers,
        outliers: OutlierEjection,
        clock: Clock,
        metrics: RouterMetrics,
        options: RouterOptions,
        aliases: Aliases,
        admission: Admission,
        recorder: RequestRecorder | None = None,
    ) -> None:
        """
        Args:
            ready_workers: the ready workers that serve pooling models.
            recorder: records the requests; None if they are not recorded.
        """
        self._ready_workers = ready_workers
        self._outliers = outliers
        self._clock = clock
        self._metrics = metrics
        self._aliases = aliases
        self._admission = admission
        self._recorder = recorder
        self._retry_budget = RetryBudget()
        self._calls: set[PoolCall] = set()
        self._placements = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.waiting: WaitingRoom[PoolCall] = WaitingRoom(
            options.max_queued_requests, options.max_queued_tokens, options.max_queue_seconds, clock, self._place,
            _fail,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self._calls)

    async def pool(self, message: common_pb2.PoolRequest, seconds: float) -> common_pb2.PoolResponse:
        """Has a worker process the request, and returns its answer.

        Args:
            seconds: how long the caller waits.

        Raises:
            QuireError: no worker answers it.
        """
        try:
            call = self._admit(message, seconds)
        except QuireError:
            self._metrics.count("refused", 0.0)
            if self._recorder is not None:
                self._recorder.record_pooling(message, "refused", model=message.model, seconds=0.0)
            raise
        outcome = "aborted"
        try:
            answer = await self._answer(call)
            outcome = "finished"
        except QuireError:
            outcome = "failed" if call.attempts else "refused"
            raise
        finally:
            self._forget(call, outcome)
        self._metrics.prompt_tokens.inc(call.request.prompt_tokens)
        return answer

    def on_lost(self, worker: Worker, error: QuireError) -> None:
        """Moves the requests of a worker whose session broke to other workers."""
        lost = Unavailable(
            f"The engine workers that were running this request were lost: {error.message}", reason=WORKER_LOST
        )
        for call in self._calls:
            if call.worker is worker and call.answer is not None:
                call.lost = lost
                call.answer.cancel()

    def on_change(self) -> None:
        """To be called when workers have come, gone, or have room again."""
        self.waiting.call()

    async def drain(self) -> None:
        """Refuses new requests; returns once none is running."""
        self._admission.draining = True
        await self._idle.wait()

    def _admit(self, message: common_pb2.PoolRequest, seconds: float) -> PoolCall:
        model = self._aliases.resolve(message.model, message.request_id)
        self._admission.check(model, len(self._calls), self.waiting)
        check_count("tenant", len(message.tenant), MAX_CALLER_NAME_LENGTH, "characters")
        request = RouteRequest(
            request_id=message.request_id,
            model=model,
            prompt_tokens=sum(len(each.token_ids) for each in message.inputs),
            sequences=len(message.inputs),
            output_tokens=0,
            tenant=message.tenant,
            tenant_weight=tenant_weight(message.tenant_weight),
            priority=message.priority,
        )
        arrived = self._clock.time()
        deadline = arrived + min(seconds, message.timeout_ms / 1000 or seconds)
        call = PoolCall(request=request, message=message, arrived=arrived, deadline=deadline)
        self._calls.add(call)
        self._idle.clear()
        return call

    async def _answer(self, call: PoolCall) -> common_pb2.PoolResponse:
        """Asks one worker after another until one answers."""
        while True:
            call.placed = _future()
            self._enter(call)
            worker = await call.placed
            try:
                answer = await self._ask(worker, call)
            except QuireError as error:
                self._move(worker, call, error)
            else:
                self._outliers.succeeded(worker)
                worker.prompt_tokens += call.request.prompt_tokens
                return answer
            finally:
                self._release(call)

    def _enter(self, call: PoolCall) -> None:
        """Places a request on a worker, or queues it.

        Raises:
            QuireError: neither is possible.
        """
        model = call.request.model
        try:
            self._ready_workers.gather(model)
        except Unavailable as error:
            self.waiting.enter(call, error, self._ready_workers.patience(model))
            return
        behind_others = not call.begun and self.waiting.has_waiting(model)
        if behind_others or not self._place(call):
            self.waiting.enter(call)

    def _place(self, call: PoolCall) -> bool:
        """Picks the least loaded worker, among equals one that has the adapter at hand, and then the one whose last
        request is longest ago; returns False when none has room.

        Raises:
            QuireError: no worker can serve it.
        """
        if call.placed.done():  # its caller has just gone
            return True
        worker = self._least_loaded(call)
        if worker is None:
            return False
        self._placements += 1
        tokens = call.request.prompt_tokens
        adapter = call.request.model if call.request.model in worker.adapters else ""
        worker.load.placed(call.request.sequences, tokens, tokens, adapter, number=self._placements)
        call.worker = worker
        call.attempts += 1
        call.placed.set_result(worker)
        return True

    def _least_loaded(self, call: PoolCall) -> Worker | None:
        """The worker with room that has the fewest tokens waiting. A request may exceed that room: it waits at the
        worker then, and the next one here."""
        ready = self._ready_workers.gather(call.request.model)
        figures = ready.figures()
        tokens = np.where(figures[PREFILL_TOKENS] <= figures[MOST_TOKENS], figures[PREFILL_TOKENS], np.inf)
        if call.avoid in ready.workers and (len(tokens) > 1 or self._clock.time() < call.avoid_until):
            tokens[ready.workers.index(call.avoid)] = np.inf
        least = np.flatnonzero(tokens == tokens.min())
        if tokens[least[0]] == np.inf:
            return None
        lacking = ready.lacking_adapter()
        if lacking is not None and not lacking[least].all():
            least = least[~lacking[least]]
        return ready.workers[int(least[figures[LAST_PLACED][least].argmin()])]

    async def _ask(self, worker: Worker, call: PoolCall) -> common_pb2.PoolResponse:
        """
        Raises:
            QuireError: the worker fails, or is lost.
        """
        seconds = (call.deadline or 0.0) - self._clock.time()
        if seconds <= 0:
            raise DeadlineExceeded("The request did not finish within its timeout_ms.", parameter="timeout_ms")
        call.lost = None
        call.answer = asyncio.ensure_future(worker.pool(call.message, call.request.model, seconds))
        try:
            return await call.answer
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if call.lost is None or task is None or task.cancelling():  # its caller has gone, perhaps just now
                raise
            raise call.lost from None
        finally:
            call.answer.cancel()

    def _move(self, worker: Worker, call: PoolCall, error: QuireError) -> None:
        """Prepares another attempt for a request that a worker failed.

        Raises:
            QuireError: it is the request's own fault, or no attempt is left.
        """
        failed = isinstance(error, Unavailable) or error.reason == ENGINE_FAULT
        if failed:
            self._outliers.failed(worker)
        elif not isinstance(error, Overloaded):
            raise error
        if call.attempts >= _MOST_ATTEMPTS:
            raise error
        if not (isinstance(error, Unavailable) or call.retrying):
            # A refusal is not the death of a worker: when many workers refuse, retries must not multiply the load.
            if not self._retry_budget.take(len(self._calls)):
                self._metrics.over_budget.inc()
                raise error
            call.retrying = True
            self._metrics.retried.inc()
        logger.info("request %s continues at another worker: %s", call.request.request_id, error.message)
        self._metrics.migrations.inc()
        call.avoid, call.avoid_until = worker, self._clock.time() + _AVOID_SECONDS

    def _release(self, call: PoolCall) -> None:
        """Takes the request off its worker, if it is on one."""
        worker, call.worker = call.worker, None
        if worker is not None:
            tokens = call.request.prompt_tokens
            worker.load.prefilled(tokens, tokens)
            worker.load.ended(call.request.sequences)
            self.waiting.call()

    def _forget(self, call: PoolCall, outcome: str) -> None:
        """Removes a request from all tables; nothing else does."""
        self.waiting.leave(call)
        self._release(call)
        if call.retrying:
            self._retry_budget.give_back()
        self._calls.discard(call)
        self._metrics.count(outcome, call.waited)
        if self._recorder is not None:
            self._recorder.record_pooling(
                call.message, outcome, model=call.request.model, seconds=self._clock.time() - call.arrived,
                queued_seconds=call.waited, attempts=call.attempts,
            )  # fmt: skip
        if not self._calls:
            self._idle.set()


def _fail(call: PoolCall, error: QuireError) -> None:
    """Ends a waiting request with an error."""
    if not call.placed.done():
        call.placed.set_exception(error)
