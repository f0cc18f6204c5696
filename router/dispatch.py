"""The router's core: takes requests, has them placed, and sees each one to its end."""

from __future__ import annotations

import asyncio
import logging

from quire.errors import DeadlineExceeded, Internal, InvalidRequest, Overloaded, QuireError, Unavailable
from quire.rpc.status import from_request_error
from quire.v1 import common_pb2, engine_pb2
from router.budget import RetryBudget
from router.metrics import RouterMetrics
from router.placement import PlacementTable
from router.policies.base import RouteRequest
from router.sessions import CallerSession, Stream
from router.worker import Worker

logger = logging.getLogger(__name__)

# The worker ends a request at its deadline; the router does so this much later, in case the worker is stuck.
DEADLINE_GRACE_SECONDS = 1.0


class Dispatcher:
    """Sessions on one side, workers on the other.

    Contract: every request that `start` gets reaches its session as exactly one final delta, unless the caller aborts
    it or the session ends first. All methods run on the event loop and none but `drain` waits.
    """

    def __init__(self, table: PlacementTable, max_inflight_requests: int, metrics: RouterMetrics) -> None:
        self._table = table
        self._max_inflight_requests = max_inflight_requests
        self._metrics = metrics
        self._budget = RetryBudget()
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self.sessions: set[CallerSession] = set()

    @property
    def retries_in_flight(self) -> int:
        """Requests whose second attempt has shown no sign of life yet."""
        return self._budget.used

    def open_session(self) -> CallerSession:
        """A new caller."""
        session = CallerSession()
        self.sessions.add(session)
        return session

    def close_session(self, session: CallerSession) -> None:
        """The caller has gone, or must go: whatever it had running is aborted."""
        self.sessions.discard(session)
        for stream_id in list(session.streams):
            self.abort(session, stream_id)

    def start(self, session: CallerSession, stream_id: int, generation: common_pb2.Generation) -> None:
        """Places a request; one that cannot be placed ends at once with an error on the session."""
        try:
            self._admit(session, stream_id)
            stream = _new_stream(session, stream_id, generation)
            self._table.add(stream)
        except Exception as error:
            self._metrics.count("refused")
            session.deliver_error(stream_id, _as_quire_error(error))
            return
        self._idle.clear()
        session.streams[stream_id] = stream
        if stream.deadline is not None:
            loop = asyncio.get_running_loop()
            stream.timer = loop.call_at(stream.deadline + DEADLINE_GRACE_SECONDS, self._expire, stream)

    def abort(self, session: CallerSession, stream_id: int) -> None:
        """Ends a request that its caller does not want any more. It gets no further delta."""
        stream = session.streams.get(stream_id)
        if stream is not None:
            self._abort_at_worker(stream)
            self._forget(stream, "aborted")

    def on_frame(self, worker: Worker, frame: engine_pb2.EngineServiceSessionResponse) -> None:
        """Passes a worker's deltas on, each to the session that its request belongs to."""
        find = self._table.find
        shares: dict[CallerSession, list[common_pb2.GenerationDelta]] = {}
        for delta in frame.deltas:
            stream = find(delta.stream_id)
            if stream is None or (stream.generation is not None and not self._take_first(stream, delta)):
                continue  # aborted, with its last deltas on their way; or started anew elsewhere
            delta.stream_id = stream.stream_id
            share = shares.get(stream.session)
            if share is None:
                share = shares[stream.session] = []
            share.append(delta)
            if delta.is_final:
                self._forget(stream, "failed" if delta.HasField("error") else "finished")
        self._metrics.deltas.inc(len(frame.deltas))
        self._send(frame, shares)

    def on_lost(self, worker: Worker, error: QuireError) -> None:
        """Starts the requests of a worker whose session broke anew elsewhere, or ends them."""
        lost = self._table.on_worker(worker)
        if lost:
            logger.warning("worker %s is lost with %d requests: %s", worker.address, len(lost), error.message)
        message = f"The engine worker that ran this request was lost: {error.message}"
        for stream in lost:
            if not self._retry(stream):
                self._fail(stream, Unavailable(message, reason="WORKER_LOST"))

    async def drain(self) -> None:
        """Takes nothing new; returns when nothing runs."""
        self._draining = True
        await self._idle.wait()

    def _admit(self, session: CallerSession, stream_id: int) -> None:
        if stream_id in session.streams:
            raise InvalidRequest(f"stream_id {stream_id} is in use on this session.", parameter="stream_id")
        if self._draining:
            raise Unavailable("The router is shutting down; send the request again.")
        if len(self._table) >= self._max_inflight_requests:
            raise Overloaded(
                f"The router has {len(self._table)} requests running, its --max-inflight-requests; try again later."
            )

    def _send(
        self,
        frame: engine_pb2.EngineServiceSessionResponse,
        shares: dict[CallerSession, list[common_pb2.GenerationDelta]],
    ) -> None:
        for session, share in shares.items():
            if len(share) == len(frame.deltas):
                session.forward(frame)
            else:
                session.deliver(share)
            if session.failure:
                self.close_session(session)

    def _take_first(self, stream: Stream, delta: common_pb2.GenerationDelta) -> bool:
        """Notes the first sign of life of a request; False when it is started anew instead."""
        if delta.HasField("error") and isinstance(from_request_error(delta.error), Unavailable) and self._retry(stream):
            return False
        self._table.mark_started(stream)
        self._end_retry(stream)
        return True

    def _retry(self, stream: Stream) -> bool:
        """Starts a request anew on another worker: once, if nothing of it was delivered and the budget allows."""
        if stream.generation is None or stream.retried or not self._budget.take(len(self._table)):
            return False
        stream.retried = stream.retrying = True
        lost = stream.worker
        self._table.remove(stream)
        try:
            self._table.add(stream, avoid=lost)
        except Exception as error:
            reason = _as_quire_error(error).message
            logger.info("request %s is not retried: %s", stream.request.request_id, reason)
            return False
        self._metrics.retries.inc()
        return True

    def _end_retry(self, stream: Stream) -> None:
        if stream.retrying:
            stream.retrying = False
            self._budget.give_back()

    def _expire(self, stream: Stream) -> None:
        self._abort_at_worker(stream)
        error = DeadlineExceeded("The request did not finish within its timeout_ms.", parameter="timeout_ms")
        self._fail(stream, error)

    def _abort_at_worker(self, stream: Stream) -> None:
        if stream.worker is None:
            return
        try:
            stream.worker.abort(stream.worker_stream_id)
        except Overloaded as error:
            logger.warning("request %s cannot be aborted: %s", stream.request.request_id, error.message)

    def _fail(self, stream: Stream, error: QuireError) -> None:
        self._forget(stream, "failed")
        stream.session.deliver_error(stream.stream_id, error)
        if stream.session.failure:
            self.close_session(stream.session)

    def _forget(self, stream: Stream, outcome: str) -> None:
        """The one place where a request leaves all tables."""
        self._table.remove(stream)
        self._end_retry(stream)
        stream.session.streams.pop(stream.stream_id, None)
        if stream.timer is not None:
            stream.timer.cancel()
        self._metrics.count(outcome)
        if not len(self._table):
            self._idle.set()


def _as_quire_error(error: Exception) -> QuireError:
    """The error for the caller. A policy that fails costs the request that it was asked for, not the session."""
    if isinstance(error, QuireError):
        return error
    logger.error("a request could not be placed", exc_info=error)
    return Internal("The request could not be placed; the log of the router has the details.")


def _new_stream(session: CallerSession, stream_id: int, generation: common_pb2.Generation) -> Stream:
    request = RouteRequest(
        request_id=generation.request_id,
        model=generation.model,
        prompt_token_ids=generation.prompt_token_ids,
        sequences=max(1, generation.sampling.n),
        cache_salt=generation.cache_salt,
        priority=generation.priority,
    )
    now = asyncio.get_running_loop().time()
    deadline = now + generation.timeout_ms / 1000 if generation.timeout_ms else None
    return Stream(session, stream_id, request, generation, deadline)
