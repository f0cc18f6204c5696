"""The engine of a model served for pooling: takes inputs from the queue, runs them and reports the pooled outputs.

It has the same interface as Engine, for the same thread, but no KV cache; every request has exactly one delta. It also
drives encoders that work for other workers, whose requests have one image each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, Protocol

from engine_svc.adapters.adapter import Adapter
from engine_svc.core.engine import MAX_CONSECUTIVE_FAILURES
from engine_svc.core.pooling_queue import LivePooling, OneShotRequest, PoolingQueue
from engine_svc.core.rest import Rest
from engine_svc.core.statistics import EngineStatistics
from engine_svc.executor.base import ExecutorDead
from engine_svc.kv_cache.events import CacheContents, Changes, Digest, Tier
from engine_svc.pooling_plan import PoolingPlan, PoolingResult
from engine_svc.requests.outputs import EngineLoad, FinishReason, SequenceDelta, Usage
from engine_svc.requests.pooling import MAX_LIVE_BYTES
from engine_svc.scheduler.policies import POLICIES
from engine_svc.upkeep import Upkeep
from quire.counters import Counters
from quire.errors import (
    ENGINE_FAULT,
    QUEUE_FULL,
    REQUEST_FAULT,
    DeadlineExceeded,
    Internal,
    Overloaded,
    QuireError,
)
from quire.options.scheduler import SchedulerOptions

logger = logging.getLogger(__name__)


class PoolingSteps(Protocol):
    """Runs pooling steps."""

    def run(self, plan: PoolingPlan) -> PoolingResult:
        """See PoolingRunner.run."""
        ...

    def upkeep(self, command: Upkeep) -> list[str]:
        """See Executor.upkeep."""
        ...

    def reset_encoder_cache(self) -> None:
        """Forgets what has been encoded of images, videos and audio."""
        ...

    def wake_by(self, wake: Callable[[], None]) -> None:
        """See Executor.wake_by."""
        ...

    def check_alive(self, asks: bool = False) -> None:
        """See Executor.check_alive."""
        ...

    def close(self) -> None:
        """Ends ranks and background work."""
        ...


class OneShotFacts(Protocol):
    """What requests ask of a model."""

    def held_bytes(self, request: Any) -> int:
        """Bytes of memory that a live request takes."""
        ...

    def sequence(self, request: Any, index: int) -> Any:
        """What a step computes for one of a request's inputs."""
        ...


class QueuedWork:
    """Implements HeldWork. The engine's thread waits for each step, which leaves no state in it."""

    is_paused = False

    def __init__(self, steps: PoolingSteps) -> None:
        self._steps = steps

    def settle(self) -> None:
        """Does nothing: no step is ever under way."""

    def let_go(self) -> None:
        """Does nothing: waiting requests hold no device memory."""

    def forget_weights(self) -> None:
        """Does nothing: there are no weights besides the model's."""

    def reset_prefix_cache(self, preempts: bool) -> None:
        """Does nothing: there is no prefix cache."""

    def reset_encoder_cache(self) -> None:
        """See PoolingSteps.reset_encoder_cache."""
        self._steps.reset_encoder_cache()


class PoolingEngine:
    """Runs pooling requests, with the contract of Engine."""

    is_waiting = False

    def __init__(
        self,
        steps: PoolingSteps,
        facts: OneShotFacts,
        options: SchedulerOptions,
        budget: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Args:
            budget: most tokens of a step; a longer sequence gets a step of its own.
        """
        self._steps, self._facts, self._clock = steps, facts, clock
        self._budget, self._max_num_seqs = budget, options.most_sequences
        self._policy = POLICIES[options.scheduling_policy]()
        self._queue = PoolingQueue()
        self._live: dict[int, LivePooling] = {}
        self._held_bytes = 0
        self._deltas: list[SequenceDelta] = []
        self._statistics = EngineStatistics()
        self._num_steps = self._num_running = self._failures = 0
        self.rest = Rest(steps.upkeep, QueuedWork(steps))

    @property
    def has_work(self) -> bool:
        """Whether a step would compute or report anything."""
        return bool(self._deltas or (self._expired() if self.rest.is_paused else self._live))

    @property
    def num_waiting(self) -> int:
        """Requests of which no input has run yet. May be read from any thread."""
        return self._queue.num_waiting

    def wake_by(self, wake: Callable[[], None]) -> None:
        """See Engine.wake_by."""
        self._steps.wake_by(wake)

    def check_alive(self, asks: bool = False) -> None:
        """See Engine.check_alive."""
        self._steps.check_alive(asks)

    def add(self, key: int, request: OneShotRequest, arrival_time: float | None = None) -> None:
        """See Engine.add."""
        arrival = self._clock() if arrival_time is None else arrival_time
        held = self._facts.held_bytes(request)
        live = LivePooling(key, request, self._policy.rank(request.priority), arrival, held)
        live.unfinished = len(request.inputs)
        live.outputs = [None] * live.unfinished
        self._live[key] = live
        self._held_bytes += held
        self._queue.push(live)
        if self._held_bytes > MAX_LIVE_BYTES and len(self._live) > 1:
            message = (
                f"The running requests hold too much memory: the limit is {MAX_LIVE_BYTES} bytes at a time; try again "
                "later."
            )
            self._end(live, FinishReason.ERROR, error=Overloaded(message, reason=QUEUE_FULL))

    def abort(self, key: int) -> None:
        """See Engine.abort."""
        if live := self._live.get(key):
            self._end(live, FinishReason.ABORT)

    def abort_all(self) -> None:
        """See Engine.abort_all."""
        for live in list(self._live.values()):
            self._end(live, FinishReason.ABORT)

    def upkeep(self, command: Upkeep) -> list[str]:
        """See Engine.upkeep."""
        return self._steps.upkeep(command)

    def name_weights(self, version: str) -> None:
        """Does nothing: answers do not tell which weights computed them."""

    def stop(self, key: int, choice_index: int, num_output_tokens: int) -> None:
        """Does nothing: there is no text to stop at."""

    def retire_adapter(self, adapter: Adapter, gone: Callable[[], None]) -> None:
        """Calls `gone` at once: no adapters are served."""
        gone()

    def num_requests_with(self, adapter: Adapter) -> int:
        """Returns 0: no adapters are served."""
        return 0

    def step(self) -> list[SequenceDelta]:
        """See Engine.step."""
        self._expire()
        batch = [] if self.rest.is_paused else self._queue.take(self._budget, self._max_num_seqs)
        if batch:
            self._run(batch)
        deltas, self._deltas = self._deltas, []
        return deltas

    def give_up(self, error: QuireError) -> list[SequenceDelta]:
        """See Engine.give_up."""
        for live in list(self._live.values()):
            self._end(live, FinishReason.ERROR, error=error)
        deltas, self._deltas = self._deltas, []
        return deltas

    def close(self) -> None:
        """See Engine.close."""
        self._steps.close()

    def load(self) -> EngineLoad:
        """Current load."""
        statistics = self._statistics
        counters = Counters(
            prompt_tokens=statistics.prompt_tokens, computed_tokens=statistics.computed_tokens,
            encoded_media=statistics.encoded_media,
            iteration_tokens=statistics.iteration_tokens.snapshot(),
            model_forward_milliseconds=statistics.forward_milliseconds.snapshot(),
            model_execute_milliseconds=statistics.execute_milliseconds.snapshot(),
        )  # fmt: skip
        return EngineLoad(
            running_sequences=self._num_running, waiting_requests=self._queue.num_waiting, used_kv_blocks=0,
            total_kv_blocks=0, swapped_sequences=0, used_host_blocks=0, total_host_blocks=0,
            waiting_prefill_tokens=self._queue.num_tokens, step=self._num_steps,
            busy=bool(self._live) and not self.rest.is_paused, counters=counters,
            status=self.rest.status(),
        )  # fmt: skip

    def take_cache_changes(self) -> Changes | None:
        """Returns None: there is no prefix cache."""
        return None

    def cache_contents(self) -> CacheContents:
        """Empty contents: there is no prefix cache."""
        return CacheContents({tier: [] for tier in Tier}, {tier: Digest() for tier in Tier})

    def _run(self, batch: list[tuple[LivePooling, int]]) -> None:
        now = self._clock()
        for live, _ in batch:
            if live.first_scheduled_time is None:
                live.first_scheduled_time = now
        sequences = [self._facts.sequence(live.request, index) for live, index in batch]
        self._num_steps += 1
        plan = PoolingPlan(self._num_steps, sequences)
        self._num_running = len(batch)
        try:
            result = self._steps.run(plan)
        except Exception as error:
            self._fail(batch, error)
            return
        finally:
            self._num_running = 0
        self._failures = 0
        self._count(plan, result)
        for (live, index), output in zip(batch, result.outputs, strict=True):
            self._take(live, index, output)

    def _take(self, live: LivePooling, index: int, output: Any) -> None:
        """
        Args:
            output: or why there is none, as a string.
        """
        if live.ended:
            return
        if isinstance(output, str):
            message = f"inputs[{index}] failed: {output}."
            self._end(live, FinishReason.ERROR, error=Internal(message, reason=REQUEST_FAULT, parameter="inputs"))
            return
        live.outputs[index] = output
        live.unfinished -= 1
        if not live.unfinished:
            self._end(live, FinishReason.STOP)

    def _count(self, plan: PoolingPlan, result: PoolingResult) -> None:
        statistics, tokens = self._statistics, plan.num_tokens
        statistics.prompt_tokens += tokens
        statistics.computed_tokens += tokens
        statistics.encoded_media += result.encoded_media
        statistics.iteration_tokens.observe(tokens)
        statistics.forward_milliseconds.observe(result.forward_milliseconds)
        statistics.execute_milliseconds.observe(result.execute_milliseconds)

    def _fail(self, batch: list[tuple[LivePooling, int]], error: Exception) -> None:
        """See Engine._fail."""
        self._failures += 1
        logger.error("step %d with %d sequences failed", self._num_steps, len(batch), exc_info=error)
        for live in dict.fromkeys(live for live, _ in batch):
            if not live.ended:
                fault = Internal("The engine failed while running this request; try again.", reason=ENGINE_FAULT)
                self._end(live, FinishReason.ERROR, error=fault)
        if isinstance(error, ExecutorDead) or self._failures >= MAX_CONSECUTIVE_FAILURES:
            raise ExecutorDead(f"the model is dead after {self._failures} failed steps: {error}") from error

    def _expire(self) -> None:
        for live in self._expired():
            message = (
                f"The request did not finish within its time limit of {live.request.timeout_seconds:g} s; allow more "
                "time or send fewer inputs."
            )
            self._end(live, FinishReason.ERROR, error=DeadlineExceeded(message, parameter="timeout_ms"))

    def _expired(self) -> list[LivePooling]:
        """Requests whose deadline has passed."""
        now = self._clock()
        return [live for live in self._live.values() if live.deadline is not None and live.deadline <= now]

    def _end(self, live: LivePooling, reason: FinishReason, error: QuireError | None = None) -> None:
        """Unregisters a request and adds its final delta."""
        del self._live[live.key]
        self._held_bytes -= live.held_bytes
        self._queue.leave(live)
        now = self._clock()
        scheduled = now if live.first_scheduled_time is None else live.first_scheduled_time
        usage = Usage(
            prompt_tokens=live.request.num_tokens, completion_tokens=0, cached_prompt_tokens=0,
            queue_seconds=max(0.0, scheduled - live.arrival_time), prefill_seconds=max(0.0, now - scheduled),
            decode_seconds=0.0, preemptions=0,
        )  # fmt: skip
        pooled = tuple(each for each in live.outputs if each is not None) if reason is FinishReason.STOP else ()
        self._deltas.append(
            SequenceDelta(live.key, 0, [], finish_reason=reason, is_final=True, usage=usage, error=error, pooled=pooled)
        )
