"""The router's core: accepts requests, has them placed, and sees each to its end, on as many workers as that takes."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Sequence
from functools import partial

from quire.bounds import MAX_CALLER_NAME_LENGTH, MAX_TIMEOUT_MS, Bound, check_count, tenant_weight
from quire.errors import (
    ENGINE_FAULT,
    PREFILLED,
    WORKER_LOST,
    DeadlineExceeded,
    Internal,
    InvalidRequest,
    Overloaded,
    QuireError,
    Unavailable,
)
from quire.options.router import RouterOptions
from quire.rpc.prompt_embeds import num_prompt_tokens
from quire.rpc.status import from_request_error
from quire.sampling import SAMPLING_BOUNDS
from quire.seeds import SeedSource
from quire.tracing.base import Span
from quire.v1 import common_pb2, engine_pb2
from router.clock import Clock
from router.metrics import RouterMetrics
from router.placement.placement import PlacementTable
from router.placement.policies.base import RouteRequest
from router.requests.admission import Admission
from router.requests.aliases import Aliases
from router.requests.crash_suspects import CrashSuspects
from router.requests.journal import Journal
from router.requests.output_lengths import OutputLengths
from router.requests.recorder import RequestRecorder
from router.requests.retry_budget import RetryBudget
from router.requests.sessions import CallerSession, Stream
from router.requests.traces import end_span
from router.requests.waiting_room import WaitingRoom
from router.workers.assignment import Assignment
from router.workers.base import Worker
from router.workers.outlier_ejection import OutlierEjection

logger = logging.getLogger(__name__)

# The worker ends a request at its deadline; the router ends it this many seconds later, in case the worker is stuck.
DEADLINE_GRACE_SECONDS = 1.0
# Limits on attempts in a row without a single token, and on attempts overall.
_MOST_FRUITLESS = 3
_MOST_ATTEMPTS = 16
# For this long a request does not go back to the worker it was just taken from, even if that is the only one.
_AVOID_SECONDS = 1.0
# If more requests than this had just begun when a worker crashed, none of them is suspected.
_MOST_SUSPECTS = 4
# A request that was on this many workers in a row when they were lost pauses this long before it goes to another one,
# until it is known what became of them.
_SUSPICIONS = 2
_PAUSE_SECONDS = 1.0


class Dispatcher:
    """Runs the requests of caller sessions on workers.

    Contract: every request passed to `start` produces exactly one final delta on its session, unless the caller aborts
    it or the session ends first. Whatever happens to the workers, the tokens before it are the ones that a single
    worker running the request undisturbed would produce. All methods run on the event loop; only `drain` waits.
    """

    def __init__(
        self,
        table: PlacementTable[Stream],
        outliers: OutlierEjection,
        clock: Clock,
        metrics: RouterMetrics,
        options: RouterOptions,
        aliases: Aliases,
        admission: Admission,
        seeds: SeedSource,
        recorder: RequestRecorder | None = None,
    ) -> None:
        self._table = table
        self._outliers = outliers
        self._clock = clock
        self._metrics = metrics
        self._seeds = seeds
        self._aliases = aliases
        self._admission = admission
        self._recorder = recorder
        self._retry_budget = RetryBudget()
        self._crash_suspects = CrashSuspects(clock)
        self._output_lengths = OutputLengths()
        self._idle = asyncio.Event()
        self._idle.set()
        self.waiting: WaitingRoom[Stream] = WaitingRoom(
            options.max_queued_requests,
            options.max_queued_tokens,
            options.max_queue_seconds,
            clock,
            self._place,
            self._fail,
            table.pick,
        )
        self.sessions: set[CallerSession] = set()

    @property
    def retries_in_flight(self) -> int:
        """Requests that count against the retry budget."""
        return self._retry_budget.used

    def open_session(self) -> CallerSession:
        """Registers a new caller."""
        session = CallerSession()
        self.sessions.add(session)
        return session

    def close_session(self, session: CallerSession) -> None:
        """Ends the session of a caller that has gone, or must go, and aborts all its running requests."""
        self.sessions.discard(session)
        for stream_id in list(session.streams):
            self.abort(session, stream_id)

    def start(
        self, session: CallerSession, stream_id: int, generation: common_pb2.Generation, span: Span | None = None
    ) -> None:
        """Places a request or queues it; if neither is possible, ends it at once with an error on the session.

        Args:
            span: the request's trace span, which ends when the request does.

        Raises:
            InvalidRequest: the session has a running request with this stream id, which an error would seem to be of.
        """
        if stream_id in session.streams:
            raise InvalidRequest(f"stream_id {stream_id} is already in use in this session.", parameter="stream_id")
        try:
            assignment = self._assignment(generation)
            self._admission.check(assignment.model, len(self._table), self.waiting)
            self._crash_suspects.check(assignment)
            stream = self._new_stream(session, stream_id, assignment)
        except QuireError as error:
            self._metrics.count("refused", 0.0)
            if self._recorder is not None:
                self._recorder.record(
                    generation, "refused", model=generation.model, prompt_tokens=num_prompt_tokens(generation),
                    seconds=0.0,
                )  # fmt: skip
            if span is not None:
                span.end(error.message)
            session.deliver_error(stream_id, error)
            return
        stream.span = span
        self._idle.clear()
        session.streams[stream_id] = stream
        if stream.deadline is not None:
            stream.timer = self._clock.call_at(stream.deadline + DEADLINE_GRACE_SECONDS, self._expire, stream)
        self._enter(stream)

    def abort(self, session: CallerSession, stream_id: int) -> None:
        """Ends a request that its caller no longer wants. It gets no further delta."""
        stream = session.streams.get(stream_id)
        if stream is not None:
            self._abort_at_worker(stream)
            self._forget(stream, "aborted")

    def stop(self, session: CallerSession, stop: engine_pb2.SequenceStop) -> None:
        """Ends one sequence of a request, in whose text the caller has found a stop string."""
        stream = session.streams.get(stop.stream_id)
        if stream is None:
            return
        stream.journal.stop(stop.choice_index, stop.num_output_tokens)
        if stream.worker is not None:
            stream.worker.stop(stream.worker_stream_id, stop.choice_index, stop.num_output_tokens)
        elif stream.journal.finished:
            self._complete(stream)
        else:
            stream.assignment = dataclasses.replace(stream.assignment, progress=stream.journal.progress())

    def hear(self, session: CallerSession, append: engine_pb2.AudioAppend) -> None:
        """Goes on with the recording of a request."""
        if (stream := session.streams.get(append.stream_id)) is not None:
            try:
                stream.hear(append)
            except Overloaded as error:
                self._abort_at_worker(stream)
                self._fail(stream, error)

    def on_frame(self, worker: Worker, frame: engine_pb2.EngineServiceSessionResponse) -> None:
        """Forwards a worker's deltas, each to the session that its request belongs to."""
        find = self._table.find
        shares: dict[CallerSession, list[common_pb2.GenerationDelta]] = {}
        for delta in frame.deltas:
            stream = find(delta.stream_id)
            if stream is None or (
                delta.finish_reason == common_pb2.FINISH_REASON_ERROR and self._try_elsewhere(stream, delta)
            ):
                continue  # aborted while its last deltas were in transit; or moving to another worker
            if not stream.journal.continues(delta):
                self._move_garbled(worker, stream)
                continue
            if not stream.started:
                self._begin(stream)
            stream.journal.take(delta)
            delta.stream_id = stream.stream_id
            share = shares.get(stream.session)
            if share is None:
                share = shares[stream.session] = []
            share.append(delta)
            if delta.is_final:
                self._end(worker, stream, delta)
        self._metrics.deltas.inc(len(frame.deltas))
        self._send(frame, shares)
        self.waiting.call()

    def on_lost(self, worker: Worker, error: QuireError) -> None:
        """Moves the requests of a worker whose session broke to other workers."""
        lost = self._table.on_worker(worker)
        if lost:
            logger.warning("worker %s is lost with %d requests: %s", worker.address, len(lost), error.message)
            # Only if it had requests: a worker that is still loading its model ends one session after another.
            self._outliers.failed(worker)
        message = f"The engine workers that were running this request were lost: {error.message}"
        suspects = self._suspects(worker)
        for stream in sorted(lost, key=lambda each: each.num_known_tokens):  # shortest first minimizes the total wait
            if stream.worker is worker:  # its session may have ended meanwhile
                stream.suspicions += stream in suspects
                self._move(stream, Unavailable(message, reason=WORKER_LOST))
        if suspects:
            worker.when_dead(partial(self._blame, suspects))
        self.waiting.call()

    def on_change(self) -> None:
        """To be called when workers have come, gone, or have room again."""
        self.waiting.call()

    async def drain(self) -> None:
        """Refuses new requests; returns once none is running."""
        self._admission.draining = True
        await self._idle.wait()

    def _assignment(self, generation: common_pb2.Generation) -> Assignment:
        model = self._aliases.resolve(generation.model, generation.session_id or generation.request_id)
        seed = generation.sampling.seed if generation.sampling.HasField("seed") else self._seeds.draw()
        return Assignment(generation, model, seed)

    def _new_stream(self, session: CallerSession, stream_id: int, assignment: Assignment) -> Stream:
        generation = assignment.generation
        sampling = generation.sampling
        SAMPLING_BOUNDS["n"].check("n", max(1, sampling.n))  # each sequence has a journal here
        Bound(0, MAX_TIMEOUT_MS).check("timeout_ms", generation.timeout_ms)
        for name in ("tenant", "session_id"):
            check_count(name, len(getattr(generation, name)), MAX_CALLER_NAME_LENGTH, "characters")
        expected = self._output_lengths.expected(assignment.model)
        request = RouteRequest(
            request_id=generation.request_id,
            model=assignment.model,
            prompt_tokens=num_prompt_tokens(generation),
            sequences=max(1, sampling.n),
            output_tokens=min(expected, sampling.max_tokens) if sampling.HasField("max_tokens") else expected,
            tenant=generation.tenant,
            tenant_weight=tenant_weight(generation.tenant_weight),
            session_id=generation.session_id,
            priority=generation.priority,
            generated_tokens=sum(len(choice.token_ids) for choice in generation.progress),
        )
        now = self._clock.time()
        deadline = now + generation.timeout_ms / 1000 if generation.timeout_ms else None
        return Stream(
            request, assignment, now, deadline, session=session, stream_id=stream_id, journal=Journal(generation)
        )

    def _enter(self, stream: Stream) -> None:
        """Places a request that is on no worker, or queues it."""
        model = stream.request.model
        try:
            self._table.require_ready(model)
            behind_others = not stream.begun and self.waiting.has_waiting(model)
            if behind_others or not self._place(stream):
                self.waiting.enter(stream)
        except Unavailable as error:
            self.waiting.enter(stream, error, self._table.patience(model))
        except QuireError as error:
            self._fail(stream, error)

    def _place(self, stream: Stream) -> bool:
        """Places the request on a worker; returns False when none has room. An exception in the policy fails only this
        request.

        Raises:
            QuireError: no worker can serve it.
        """
        try:
            return self._table.add(stream, stream.waited_until(self._clock.time())) and stream.catch_up()
        except QuireError:
            self._abort_at_worker(stream)  # which may have got it, and not take the audio that has been waiting
            raise
        except Exception as error:
            logger.exception("a request could not be placed")
            message = "The request could not be placed; the log of the router has the details."
            raise Internal(message) from error

    def _try_elsewhere(self, stream: Stream, delta: common_pb2.GenerationDelta) -> bool:
        """Moves a request that its worker gave up on to another one; returns False if the request should end
        instead."""
        error, worker = from_request_error(delta.error), stream.worker
        if error.reason == PREFILLED:
            self._hand_over(stream, delta.usage)
            return True
        if not isinstance(error, Unavailable) and error.reason != ENGINE_FAULT:
            return False
        crashed = not isinstance(error, Unavailable)
        if worker is not None and crashed:
            self._outliers.failed(worker)
        if not stream.started and not stream.retrying:
            # A refusal is not the death of a worker: when many workers refuse, retries must not multiply the load.
            if not self._retry_budget.take(len(self._table)):
                self._metrics.over_budget.inc()
                return False
            stream.retrying = True
            self._metrics.retried.inc()
        if crashed and worker is not None and stream in self._suspects(worker):
            stream.suspicions += 1
            if self._record_crash(stream):
                return True
        self._move(stream, error)
        return True

    def _move_garbled(self, worker: Worker, stream: Stream) -> None:
        """Moves a request of which the worker lost or repeated tokens: what came before is right."""
        logger.error("worker %s lost or repeated tokens of request %s", worker.address, stream.request.request_id)
        self._outliers.failed(worker)
        self._abort_at_worker(stream)
        message = "The engine workers that were running this request lost or repeated tokens."
        self._move(stream, Unavailable(message, reason=WORKER_LOST))

    def _hand_over(self, stream: Stream, usage: common_pb2.GenerationUsage) -> None:
        """Continues a request on a worker that loads its prompt's blocks, from the tokens that it has."""
        if stream.worker is not None:
            self._outliers.succeeded(stream.worker)
            stream.assignment = dataclasses.replace(stream.assignment, kv_source=stream.worker.address)
        stream.prefill_usage = usage
        self._table.remove(stream)
        self._metrics.hand_overs.inc()
        self._take_progress(stream)
        self._enter(stream)

    def _take_progress(self, stream: Stream) -> None:
        """Notes what has been generated, for the next worker."""
        stream.assignment = dataclasses.replace(stream.assignment, progress=stream.journal.progress())
        stream.request = dataclasses.replace(stream.request, generated_tokens=stream.journal.num_tokens)

    def _begin(self, stream: Stream) -> None:
        """Handles the request's first delta from its current worker."""
        self._table.mark_started(stream)
        self._end_retry(stream)
        stream.suspicions = 0
        self._crash_suspects.clear(stream.assignment)

    def _suspects(self, worker: Worker) -> list[Stream]:
        """The requests that may have crashed a worker: those that had just begun on it, if they are few."""
        begun = [stream for stream in self._table.on_worker(worker) if not stream.started]
        return begun if len(begun) <= _MOST_SUSPECTS else []

    def _blame(self, suspects: Sequence[Stream]) -> None:
        """Records a crash for each of these requests, as the worker that they had just begun on has died."""
        for stream in suspects:
            if not stream.started:  # one that has begun elsewhere meanwhile is innocent
                self._record_crash(stream)
        self.waiting.call()

    def _record_crash(self, stream: Stream) -> bool:
        """Records that a worker crashed as it began the request, and ends the request if others did before; returns
        whether it did."""
        guilty = self._crash_suspects.record_crash(stream.assignment)
        if guilty and stream.session.streams.get(stream.stream_id) is stream:
            self._abort_at_worker(stream)
            fault = "The engine failed each time it started this request; it will not be retried."
            self._fail(stream, Internal(fault, reason=ENGINE_FAULT))
        return guilty

    def _move(self, stream: Stream, error: QuireError) -> None:
        """Takes the request off a worker that it has lost; continues it elsewhere, or ends it with the error."""
        now = self._clock.time()
        stream.avoid, stream.avoid_until = stream.worker, now + _AVOID_SECONDS
        if not stream.started:
            stream.fruitless += 1
        self._table.remove(stream)
        is_over = stream.fruitless >= _MOST_FRUITLESS or stream.attempts >= _MOST_ATTEMPTS or stream.journal.finished
        if is_over or stream.goes_on:  # only the worker has what it has heard
            self._fail(stream, error)
            return
        self._take_progress(stream)
        self._metrics.migrations.inc()
        if stream.suspicions < _SUSPICIONS:
            self._enter(stream)
        else:
            stream.pause = self._clock.call_at(now + _PAUSE_SECONDS, self._enter, stream)

    def _end(self, worker: Worker, stream: Stream, delta: common_pb2.GenerationDelta) -> None:
        """Does the bookkeeping for a request whose final delta goes out."""
        failed = delta.HasField("error")
        if not failed:
            usage = delta.usage
            usage.router_queue_seconds = stream.waited
            if stream.prefill_usage is not None:  # what the last worker found in its cache was computed for it
                for name in ("cached_prompt_tokens", "queue_seconds", "prefill_seconds"):
                    setattr(usage, name, getattr(stream.prefill_usage, name))
            if stream.assignment.generation.remote_decode and worker.lets_pull:
                usage.kv_source = worker.address
            self._outliers.succeeded(worker)
            self._table.check_prediction(stream, usage.cached_prompt_tokens)
            worker.prompt_tokens += usage.prompt_tokens
            worker.cached_prompt_tokens += usage.cached_prompt_tokens
            self._metrics.prompt_tokens.inc(usage.prompt_tokens)
            self._metrics.cached_tokens.inc(usage.cached_prompt_tokens)
            decoded = usage.completion_tokens / stream.request.sequences
            self._output_lengths.finished(stream.request.model, decoded)
            undisturbed = stream.attempts == 1 and stream.arrived > worker.ejection.rested
            if decoded > 1 and undisturbed and usage.decode_seconds > 0:
                worker.ejection.decoded(decoded - 1, usage.decode_seconds)
        self._forget(stream, "failed" if failed else "finished")

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

    def _end_retry(self, stream: Stream) -> None:
        if stream.retrying:
            stream.retrying = False
            self._retry_budget.give_back()

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
        if stream.journal.finished:  # only the usage is missing
            self._complete(stream)
            return
        self._forget(stream, "failed" if stream.attempts else "refused")
        stream.session.deliver_error(stream.stream_id, error)
        if stream.session.failure:
            self.close_session(stream.session)

    def _complete(self, stream: Stream) -> None:
        """Ends a request whose sequences have all ended, when no worker is left to do so."""
        delta = common_pb2.GenerationDelta(
            stream_id=stream.stream_id, finish_reason=common_pb2.FINISH_REASON_STOP, is_final=True
        )
        delta.usage.prompt_tokens = stream.request.prompt_tokens
        delta.usage.completion_tokens = stream.journal.num_tokens
        delta.usage.router_queue_seconds = stream.waited
        self._forget(stream, "finished")
        stream.session.deliver([delta])
        if stream.session.failure:
            self.close_session(stream.session)

    def _forget(self, stream: Stream, outcome: str) -> None:
        """Removes a request from all tables; nothing else does."""
        self.waiting.leave(stream)
        if stream.span is not None:
            end_span(stream.span, stream, outcome)
        self._table.remove(stream)
        self._end_retry(stream)
        stream.session.streams.pop(stream.stream_id, None)
        for timer in (stream.timer, stream.pause):
            if timer is not None:
                timer.cancel()
        self._metrics.count(outcome, stream.waited)
        if self._recorder is not None:
            self._recorder.record(
                stream.assignment.generation, outcome, model=stream.request.model,
                prompt_tokens=stream.request.prompt_tokens, seconds=self._clock.time() - stream.arrived,
                output_tokens=stream.journal.num_tokens, queued_seconds=stream.waited, attempts=stream.attempts,
            )  # fmt: skip
        if not any(session.streams for session in self.sessions):
            self._idle.set()
