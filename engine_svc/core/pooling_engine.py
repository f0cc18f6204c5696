"""The engine of a model served for pooling: takes inputs from the queue, runs them and reports the pooled outputs.

It has the same interface as Engine, for the same thread, but no KV cache; every request has exactly one delta. It also
drives encoders that work for other workers, whose requests have one image each.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

from engine_svc.adapters.adapter import Adapter
from engine_svc.core.engine import MAX_CONSECUTIVE_FAILURES
from engine_svc.core.pooling_queue import LivePooling, PoolingQueue, Request
from engine_svc.core.rest import Rest
from engine_svc.core.statistics import EngineStatistics
from engine_svc.executor.base import ExecutorDead
from engine_svc.kv_cache.events import CacheContents, Changes, Digest, Tier
from engine_svc.plan import AdapterChanges
from engine_svc.pooling_plan import Given, OneShotPlan, OneShotResult, Output
from engine_svc.requests.outputs import AdapterLoad, EngineLoad, FinishReason, SequenceDelta, Usage
from engine_svc.requests.pooling import MAX_LIVE_BYTES
from engine_svc.scheduler.adapter_slots import AdapterSlots
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
from quire.images import Image
from quire.options.lora import LoraOptions
from quire.options.scheduler import SchedulerOptions

logger = logging.getLogger(__name__)


class OneShotSteps(Protocol[Given, Output]):
    """Runs the steps of a model."""

    def run(self, plan: OneShotPlan[Given]) -> OneShotResult[Output]:
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


_Asked = TypeVar("_Asked", contravariant=True)
_Computed = TypeVar("_Computed", covariant=True)


class OneShotFacts(Protocol[_Asked, _Computed]):
    """What requests ask of a model."""

    def held_bytes(self, request: _Asked) -> int:
        """Bytes of memory that a live request takes."""
        ...

    def sequence(self, request: _Asked, index: int, adapter_slot: int) -> _Computed:
        """What a step computes for one of a request's inputs.

        Args:
            adapter_slot: the device's slot that has the request's adapter; 0 for none.
        """
        ...


class QueuedWork(Generic[Request, Given, Output]):
    """Implements HeldWork. The engine's thread waits for each step, which leaves no state in it but adapters."""

    is_paused = False

    def __init__(
        self, steps: OneShotSteps[Given, Output], adapters: AdapterSlots[LivePooling[Request, Output]],
        live: Mapping[int, LivePooling[Request, Output]],
    ) -> None:  # fmt: skip
        """
        Args:
            live: the engine's requests.
        """
        self._steps, self._adapters, self._live = steps, adapters, live

    def settle(self) -> None:
        """Does nothing: no step is ever under way."""

    def let_go(self) -> None:
        """Takes the adapters' slots from the requests, which get them again before their next inputs run."""
        for live in self._live.values():
            self._adapters.release(live)

    def forget_weights(self) -> None:
        """See HeldWork.forget_weights."""
        self._adapters.forget_memory()

    def reset_prefix_cache(self, preempts: bool) -> None:
        """Does nothing: there is no prefix cache."""

    def reset_encoder_cache(self) -> None:
        """See OneShotSteps.reset_encoder_cache."""
        self._steps.reset_encoder_cache()


class PoolingEngine(Generic[Request, Given, Output]):
    """Runs pooling requests, with the contract of Engine."""

    def __init__(
        self,
        steps: OneShotSteps[Given, Output],
        facts: OneShotFacts[Request, Given],
        options: SchedulerOptions,
        budget: int,
        clock: Callable[[], float] = time.monotonic,
        lora: LoraOptions = LoraOptions(),
    ) -> None:
        """
        Args:
            budget: most tokens of a step; a longer sequence gets a step of its own.
        """
        self.is_waiting = False  # see Engine.is_waiting
        self._steps, self._facts, self._clock = steps, facts, clock
        self._budget, self._max_num_seqs = budget, options.most_sequences
        self._policy = POLICIES[options.scheduling_policy]()
        self._queue = PoolingQueue[Request, Output]()
        self._live: dict[int, LivePooling[Request, Output]] = {}
        slots = (lora.max_loras, lora.host_places) if lora.enable_lora else ()
        self._adapters = AdapterSlots[LivePooling[Request, Output]](*slots)
        self._held_bytes = 0
        self._deltas: list[SequenceDelta] = []
        self._statistics = EngineStatistics()
        self._num_steps = self._num_running = self._failures = 0
        self.rest = Rest(steps.upkeep, QueuedWork(steps, self._adapters, self._live))

    @property
    def has_work(self) -> bool:
        """Whether a step would compute or report anything."""
        if self.rest.is_paused:
            return bool(self._deltas or self._expired())
        return bool(self._deltas or self._live) or self._adapters.is_changing

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

    def add(self, key: int, request: Request, arrival_time: float | None = None) -> None:
        """See Engine.add."""
        arrival = self._clock() if arrival_time is None else arrival_time
        held = self._facts.held_bytes(request)
        live = LivePooling[Request, Output](key, request, self._policy.rank(request.priority), arrival, held)
        live.unfinished = len(request.inputs)
        live.outputs = [None] * live.unfinished
        self._live[key] = live
        self._held_bytes += held
        self._adapters.enter(live.adapter)
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

    def hear(self, key: int, audio: Image, *, is_last: bool) -> None:
        """Does nothing: no recording goes on."""

    def refuse(self, key: int, error: QuireError) -> None:
        """See Engine.refuse."""
        if live := self._live.get(key):
            self._end(live, FinishReason.ERROR, error=error)

    def retire_adapter(self, adapter: Adapter, gone: Callable[[], None]) -> None:
        """See Engine.retire_adapter."""
        self._adapters.retire(adapter, gone)

    def num_requests_with(self, adapter: Adapter) -> int:
        """See Engine.num_requests_with."""
        return self._adapters.num_requests(adapter.key)

    def step(self) -> list[SequenceDelta]:
        """See Engine.step."""
        self._expire()
        if not self.rest.is_paused:
            self._advance()
        deltas, self._deltas = self._deltas, []
        return deltas

    def _advance(self) -> None:
        """Runs the next inputs of requests whose adapters are there, and has the adapters of others brought."""
        for live in self._adapters.settle():
            self._queue.put_back(live)
        batch = self._queue.take(self._budget, self._max_num_seqs, self._adapters.admit)
        if batch or self._adapters.is_changing:
            self._run(batch)
        self.is_waiting = not batch and self._adapters.is_changing

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
            adapters=self._adapter_loads(), status=self.rest.status(),
        )  # fmt: skip

    def _adapter_loads(self) -> tuple[AdapterLoad, ...]:
        if not self._adapters.is_serving:
            return ()
        live = list(self._live.values())
        return self._adapters.loads((e for e in live if e.adapter_slot), (e for e in live if not e.adapter_slot))

    def check(self) -> None:
        """Verifies that no adapter's slot is lost; see AdapterSlots.check."""
        self._adapters.check(self._live.values())

    def take_cache_changes(self) -> Changes | None:
        """Returns None: there is no prefix cache."""
        return None

    def cache_contents(self) -> CacheContents:
        """Empty contents: there is no prefix cache."""
        return CacheContents({tier: [] for tier in Tier}, {tier: Digest() for tier in Tier})

    def _run(self, batch: list[tuple[LivePooling[Request, Output], int]]) -> None:
        now = self._clock()
        for live, _ in batch:
            if live.first_scheduled_time is None:
                live.first_scheduled_time = now
        sequences = [self._facts.sequence(live.request, index, live.adapter_slot) for live, index in batch]
        self._num_steps += 1
        plan = OneShotPlan(self._num_steps, sequences, self._adapters.take_changes())
        self._num_running = len(batch)
        try:
            result = self._steps.run(plan)
        except Exception as error:
            self._fail(batch, plan.adapters, error)
            return
        finally:
            self._num_running = 0
        if batch:
            self._failures = 0
            self._count(plan, result)
        for live, why in self._adapters.end_reads(result.read_adapters):
            message = f"The adapter {live.request.model} cannot be read: {why}."
            logger.error("request %s: %s", live.request.request_id, message)
            self._end(live, FinishReason.ERROR, error=Internal(message, reason=REQUEST_FAULT))
        for (live, index), output in zip(batch, result.outputs, strict=True):
            self._take(live, index, output)

    def _take(self, live: LivePooling[Request, Output], index: int, output: Output | str) -> None:
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

    def _count(self, plan: OneShotPlan[Given], result: OneShotResult[Output]) -> None:
        statistics, tokens = self._statistics, plan.num_tokens
        statistics.prompt_tokens += tokens
        statistics.computed_tokens += tokens
        statistics.encoded_media += result.encoded_media
        statistics.iteration_tokens.observe(tokens)
        statistics.forward_milliseconds.observe(result.forward_milliseconds)
        statistics.execute_milliseconds.observe(result.execute_milliseconds)

    def _fail(
        self, batch: list[tuple[LivePooling[Request, Output], int]], changes: AdapterChanges, error: Exception
    ) -> None:
        """See Engine._fail."""
        self._adapters.redo(changes)
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

    def _expired(self) -> list[LivePooling[Request, Output]]:
        """Requests whose deadline has passed."""
        now = self._clock()
        return [live for live in self._live.values() if live.deadline is not None and live.deadline <= now]

    def _end(self, live: LivePooling[Request, Output], reason: FinishReason, error: QuireError | None = None) -> None:
        """Unregisters a request and adds its final delta."""
        del self._live[live.key]
        self._held_bytes -= live.held_bytes
        self._queue.leave(live)
        self._adapters.forget(live)
        self._adapters.release(live)
        self._adapters.leave(live.adapter)
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
