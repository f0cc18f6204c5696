"""A simulated engine: continuous batching with chunked prefill and a prefix cache, in simulated time.

It differs from a real one in three ways that do not matter to a router: steps that only decode are taken many at a
time, a request gets the blocks for its whole answer when it is admitted, so that nothing is ever preempted, and time
per token does not grow with the context.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable

from benchmarks.router_simulation.cache import BlockCache
from benchmarks.router_simulation.clock import Event, EventClock
from benchmarks.router_simulation.job import EngineSpec, Job, Listener
from benchmarks.router_simulation.requests import BLOCK_SIZE, SimRequest
from quire.errors import ENGINE_FAULT, Internal, QuireError, Unavailable
from quire.rpc.status import to_request_error
from quire.v1 import common_pb2


class Engine:
    """Runs what it is given until it dies."""

    def __init__(self, name: str, spec: EngineSpec, clock: EventClock, on_start: Callable[[Engine, Job], None]) -> None:
        self.name = name
        self.spec = spec
        self.listeners: list[Listener] = []
        self.alive = True
        self.draining = False
        self.frozen = False
        self.slowness = 1.0
        self.busy_seconds = 0.0
        self.computed_tokens = 0
        self._clock = clock
        self._on_start = on_start
        self._order = itertools.count()
        self.reset()

    def reset(self) -> None:
        """A new process: nothing runs, nothing is cached, all counters are zero."""
        self.cache = BlockCache(self.spec.num_blocks)
        self._jobs: dict[tuple[Listener, int], Job] = {}
        self._waiting: deque[Job] = deque()
        self._prefilling: deque[Job] = deque()
        self._decoding: list[tuple[int, int, Job]] = []  # heap: (step of the next delta, order, job)
        self._num_decoding = 0
        self._step = 0
        self._step_tokens = 0.0
        self._step_seconds = 0.0
        self._cancel_step()

    def _cancel_step(self) -> None:
        self._chunks: list[tuple[Job, int]] = []
        self._steps = 0  # under way
        self._began = self._each = 0.0
        self._event: Event | None = None

    def start(self, listener: Listener, stream_id: int, request: SimRequest, position: int) -> None:
        """A request has arrived, with so many tokens generated elsewhere."""
        job = Job(listener, stream_id, request, position, self._clock.time(), sent=position)
        if self.draining:
            self._send_error(job, Unavailable("The engine is draining."))
            return
        job.prefill_tokens = request.prompt_tokens + position
        self._jobs[listener, stream_id] = job
        self._waiting.append(job)
        self._on_start(self, job)
        self._interrupt()

    def abort(self, listener: Listener, stream_id: int) -> None:
        """A request is not wanted any more."""
        job = self._jobs.get((listener, stream_id))
        if job is not None:
            self._leave(job)
            self._interrupt()

    def abort_all(self, listener: Listener) -> None:
        """A connection has ended."""
        for job in [job for job in self._jobs.values() if job.listener is listener]:
            self._leave(job)
        self._interrupt()

    def fail_step(self) -> None:
        """A step raises: those in it end with an error, and the cache is void."""
        running = [job for job in self._jobs.values() if job not in self._waiting]
        for job in running:
            self._leave(job)
        for job in running:
            self._send_error(job, Internal("The engine failed while it ran this request.", reason=ENGINE_FAULT))
        keys = self.cache.keys
        self.cache = BlockCache(self.spec.num_blocks)
        self.cache.removed += keys
        self._tell_cache()
        if self._event is not None:
            self._event.cancel()
        self._cancel_step()
        self._plan()

    def freeze(self) -> None:
        """Nothing happens from now on."""
        self.frozen = True
        if self._event is not None:
            self._event.cancel()
        self._event = None

    def thaw(self) -> None:
        """It goes on where it was; the step under way takes its full time again."""
        if not self.frozen:
            return  # it was killed meanwhile
        self.frozen = False
        if self._steps:
            self._began = self._clock.time()
            self._event = self._clock.call_at(self._began + self._steps * self._each, self._finish)
        else:
            self._plan()

    def drain(self) -> None:
        """Refuses what is new from now on."""
        self.draining = True
        for listener in self.listeners:
            listener.drain_began()

    def stop(self) -> None:
        """The process dies."""
        self.alive = self.draining = self.frozen = False
        if self._event is not None:
            self._event.cancel()
        self.reset()
        for listener in self.listeners:
            listener.process_died()

    def begin(self) -> None:
        """A new process takes the place of the dead one."""
        self.alive = True
        for listener in self.listeners:
            listener.process_began()

    def load(self) -> common_pb2.EngineLoad:
        """A heartbeat's content."""
        running = self._num_decoding + len(self._prefilling)
        unstarted = sum(job.prefill_tokens for job in self._waiting)
        return common_pb2.EngineLoad(
            running_sequences=running, waiting_requests=len(self._waiting),
            used_kv_blocks=self.cache.used_blocks, total_kv_blocks=self.spec.num_blocks,
            waiting_prefill_tokens=unstarted + sum(job.prefill_tokens - job.computed for job in self._prefilling),
            step=self._step, busy=bool(self._jobs),
            counters=common_pb2.EngineCounters(
                computed_tokens=round(self._step_tokens),
                model_execute_milliseconds=common_pb2.Histogram(counts=[self._step], sum=self._step_seconds * 1e3),
            ),
        )  # fmt: skip

    def _leave(self, job: Job) -> None:
        """Takes a job out of everything."""
        job.gone = True
        del self._jobs[job.listener, job.stream_id]
        if job in self._waiting:
            self._waiting.remove(job)
            return
        if job in self._prefilling:
            self._prefilling.remove(job)
        else:
            self._num_decoding -= 1
        self.cache.free(job.held, job.num_blocks)

    def _interrupt(self) -> None:
        """Something has changed: steps that were taken at once end with the one under way."""
        if self.frozen or not self.alive:
            return
        if self._event is None:
            self._plan()
        elif self._steps > 1:
            done = max(1, math.ceil((self._clock.time() - self._began) / self._each - 1e-9))
            if done < self._steps:
                self._event.cancel()
                self._steps = done
                self._event = self._clock.call_at(self._began + done * self._each, self._finish)

    def _plan(self) -> None:
        """Begins the next step, or as many as are alike."""
        self._event = None
        while self._decoding and self._decoding[0][2].gone:
            heapq.heappop(self._decoding)
        budget = self.spec.max_num_batched_tokens - self._num_decoding
        self._chunks = []
        for job in self._prefilling:
            budget = self._add_chunk(job, budget)
        while budget > 0 and self._waiting and self._admit(self._waiting[0]):
            job = self._waiting.popleft()
            self._prefilling.append(job)
            budget = self._add_chunk(job, budget)
        if not self._chunks and not self._decoding:
            return
        self._steps = 1 if self._chunks else max(1, self._decoding[0][0] - self._step)
        tokens = self._num_decoding + sum(count for _, count in self._chunks)
        self._each = (self.spec.seconds_per_step + self.spec.seconds_per_token * tokens) * self.slowness
        self._began = self._clock.time()
        self._event = self._clock.call_at(self._began + self._steps * self._each, self._finish)

    def _add_chunk(self, job: Job, budget: int) -> int:
        count = min(budget, job.prefill_tokens - job.computed)
        if count > 0:
            self._chunks.append((job, count))
        return budget - max(0, count)

    def _admit(self, job: Job) -> bool:
        if self._num_decoding + len(self._prefilling) >= self.spec.max_num_seqs:
            return False
        most = (job.prefill_tokens - 1) // BLOCK_SIZE
        hits = self.cache.allocate(job.request.keys, most, job.num_blocks)
        if hits is None:
            return False
        job.computed = job.cached = hits * BLOCK_SIZE
        job.held = list(job.request.keys[:hits])
        job.published = hits
        return True

    def _finish(self) -> None:
        """The steps under way are done."""
        tokens = self._num_decoding * self._steps
        self._step += self._steps
        seconds = self._steps * self._each
        batches: dict[Listener, list[common_pb2.GenerationDelta]] = {}
        while self._decoding and self._decoding[0][0] <= self._step:
            job = heapq.heappop(self._decoding)[2]
            if not job.gone:
                self._emit(job, batches)
        for job, count in self._chunks:
            tokens += count
            if not job.gone:
                self._prefilled(job, count, batches)
        self._steps, self._event, self._chunks = 0, None, []
        self._step_tokens += tokens
        self._step_seconds += seconds
        self.computed_tokens += tokens
        self.busy_seconds += seconds
        for listener, deltas in batches.items():
            listener.send(deltas)
        self._tell_cache()
        self._plan()

    def _prefilled(self, job: Job, count: int, batches: dict[Listener, list[common_pb2.GenerationDelta]]) -> None:
        job.computed += count
        self._publish(job, job.computed // BLOCK_SIZE)
        if job.computed == job.prefill_tokens:
            self._prefilling.remove(job)
            self._num_decoding += 1
            job.first_step, job.first_time, job.first_position = self._step, self._clock.time(), job.position
            self._emit(job, batches)

    def _publish(self, job: Job, num_blocks: int) -> None:
        job.held += self.cache.publish(job.request.keys[job.published : num_blocks])
        job.published = max(job.published, num_blocks)

    def _emit(self, job: Job, batches: dict[Listener, list[common_pb2.GenerationDelta]]) -> None:
        """Sends what a job has generated since its last delta."""
        request = job.request
        job.position = job.first_position + 1 + self._step - job.first_step
        delta = common_pb2.GenerationDelta(stream_id=job.stream_id, token_ids=request.tokens(job.sent, job.position))
        job.sent = job.position
        batches.setdefault(job.listener, []).append(delta)
        if job.position < request.output_tokens:
            step = min(self.spec.tokens_per_delta, request.output_tokens - job.position) + self._step
            heapq.heappush(self._decoding, (step, next(self._order), job))
            return
        self._publish(job, (request.total_tokens - 1) // BLOCK_SIZE)
        self._leave(job)
        delta.finish_reason, delta.is_final = common_pb2.FINISH_REASON_STOP, True
        delta.usage.prompt_tokens = request.prompt_tokens
        delta.usage.completion_tokens = request.output_tokens
        delta.usage.cached_prompt_tokens = min(job.cached, request.prompt_tokens)
        delta.usage.decode_seconds = self._clock.time() - job.first_time

    def _send_error(self, job: Job, error: QuireError) -> None:
        delta = common_pb2.GenerationDelta(
            stream_id=job.stream_id, finish_reason=common_pb2.FINISH_REASON_ERROR, is_final=True,
            error=to_request_error(error),
        )  # fmt: skip
        job.listener.send([delta])

    def _tell_cache(self) -> None:
        cache = self.cache
        if cache.stored or cache.removed:
            for listener in self.listeners:
                listener.cache_changed(cache.removed, cache.stored)
            cache.stored, cache.removed = [], []
