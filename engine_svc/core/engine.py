"""The engine: it repeatedly schedules, executes and processes a step. Single-threaded; `loop` runs it in a thread."""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine_svc.adapters.adapter import Adapter
from engine_svc.core.constraints import ConstrainedRequests
from engine_svc.core.hand_overs import HandOvers
from engine_svc.core.live_requests import LiveRequests
from engine_svc.core.processor import StepProcessor
from engine_svc.core.rest import Rest, ScheduledWork
from engine_svc.core.statistics import EngineStatistics
from engine_svc.executor.base import Executor, ExecutorDead
from engine_svc.kv_cache.connectors.base import KvConnector
from engine_svc.kv_cache.connectors.host_tier import HostTier
from engine_svc.kv_cache.connectors.tiers import joined
from engine_svc.kv_cache.events import CacheContents, Changes
from engine_svc.kv_cache.facts import KvCacheFacts
from engine_svc.kv_cache.manager import KvCacheManager
from engine_svc.plan import RoutedExpertsForm
from engine_svc.requests.admission import make_sequences
from engine_svc.requests.outputs import EngineLoad, FinishReason, SequenceDelta
from engine_svc.requests.recording import Recording
from engine_svc.requests.request import GenerationRequest
from engine_svc.requests.routed_rows import RoutedRows
from engine_svc.requests.sequence import LiveRequest
from engine_svc.scheduler.adapter_slots import AdapterSlots
from engine_svc.scheduler.batch import Batch
from engine_svc.scheduler.drafter import Drafter
from engine_svc.scheduler.image_encodings import ImageEncodings
from engine_svc.scheduler.media_pulls import PullMedia
from engine_svc.scheduler.policies import POLICIES
from engine_svc.scheduler.scheduler import Scheduler
from engine_svc.structured.grammars import Grammars
from engine_svc.upkeep import Upkeep
from quire.counters import Counters
from quire.errors import ENGINE_FAULT, DeadlineExceeded, Internal, InvalidRequest, Overloaded, QuireError
from quire.images import Image
from quire.options.engine import EngineOptions
from quire.seeds import SeedSource

logger = logging.getLogger(__name__)

# After this many failed steps in a row, the executor is assumed not to recover.
MAX_CONSECUTIVE_FAILURES = 3


@dataclass(frozen=True, kw_only=True)
class EngineFacts(KvCacheFacts):
    """Properties of an engine that are known only once its model is loaded."""

    max_model_len: int  # at most the tokens of one sequence that the blocks hold
    eos_token_ids: frozenset[int] = frozenset()
    bidirectional_images: bool = False  # see ModelFacts.whole_image_tokens
    frames_per_token: int = 0  # see ModelFacts
    routed_experts: RoutedExpertsForm | None = None  # None if they are not returned


class Engine:
    """Runs requests on an executor whose KV cache has been allocated.

    Contract: `add` takes validated requests only; `step` is called while `has_work`, and its deltas end every request
    with exactly one that `is_final`. `load` may be called from any thread; everything else from a single thread,
    unless stated otherwise.
    """

    def __init__(
        self,
        executor: Executor,
        options: EngineOptions,
        facts: EngineFacts,
        clock: Callable[[], float] = time.monotonic,
        drafter: Drafter | None = None,
        connectors: Sequence[KvConnector] = (),
        grammars: Grammars | None = None,
        pull_media: PullMedia | None = None,
    ) -> None:
        """
        Args:
            drafter: drafts tokens for an executor that verifies them.
            connectors: those whose block stores the executor has, besides that of the host tier, from near to far.
            grammars: compiles constraints and is closed with the engine; None means that constrained requests are
                refused.
            pull_media: has images encoded by other workers; None if this one encodes all.
        """
        self._executor = executor
        self._facts = facts
        self._clock = clock
        host = [HostTier(facts.num_host_blocks, facts.num_host_snapshots)] if facts.num_host_blocks else []
        self._kv_cache = KvCacheManager(facts, options.cache, joined([*host, *connectors]), clock)
        self._policy = POLICIES[options.scheduler.scheduling_policy]()
        self._drafter = drafter
        lookahead = options.speculative.num_lookahead_slots
        lora = options.lora
        budget = facts.max_num_batched_tokens
        self._scheduler = Scheduler(
            self._kv_cache, options.scheduler, budget, drafter, lookahead,
            AdapterSlots(lora.max_loras, lora.host_places) if lora.enable_lora else None, facts.num_stages,
            whole_images=facts.bidirectional_images,
            images=ImageEncodings(budget, facts.frames_per_token, pull_media),
        )  # fmt: skip
        self._statistics = EngineStatistics()
        self._requests = LiveRequests(self._scheduler, clock, self._statistics)
        self._processor = StepProcessor(
            self._scheduler, self._kv_cache, self._requests, self._statistics, clock, drafter
        )
        self._hand_overs = HandOvers(self._requests, self._kv_cache, clock)
        self._constraints = ConstrainedRequests(grammars, self._requests, self._scheduler, facts.eos_token_ids)
        self._arrivals = itertools.count()
        self._seeds = SeedSource(options.generation.seed)
        self._failures = 0
        self._in_flight: deque[Batch] = deque()
        self._is_waiting = False
        self.rest = Rest(
            executor.upkeep, ScheduledWork(self._scheduler, self._kv_cache, self._collect_all, self._advance)
        )
        self._max_in_flight = executor.max_in_flight if options.scheduler.async_scheduling else facts.num_stages

    @property
    def has_work(self) -> bool:
        """Whether a step would compute, move or report anything."""
        has_news = self._requests.has_deltas or self._requests.has_expired or self._constraints.has_news
        has_news = has_news or self._hand_overs.is_holding
        return self._is_stepping or has_news or bool(self._in_flight)

    @property
    def _is_stepping(self) -> bool:
        """Whether there is something to compute or transfer, and the memory for it is present."""
        return self._scheduler.has_work and not self.rest.asleep

    @property
    def is_waiting(self) -> bool:
        """Whether the last step had nothing to compute, so the next one is not urgent.

        There are transfers under way, or sequences wait for the slots or memory of others that listen.
        """
        return self._is_waiting or (self._hand_overs.is_holding and not (self._is_stepping or self._in_flight))

    @property
    def num_waiting(self) -> int:
        """Sequences without a slot, and requests waiting for their grammars. May be read from any thread."""
        return self._scheduler.num_waiting + self._constraints.num_waiting

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Registers a function to call, from any thread, when work appears by itself or `check_alive` would raise."""
        self._constraints.wake_by(wake)
        self._executor.wake_by(wake)

    def check_alive(self, asks: bool = False) -> None:
        """Checks the executor while there is no work; see Executor.check_alive.

        Raises:
            ExecutorDead: see `step`.
        """
        self._executor.check_alive(asks)

    def add(self, key: int, request: GenerationRequest, arrival_time: float | None = None) -> None:
        """Adds a request.

        Args:
            key: identifies the request in deltas and `abort`; never reused.
            arrival_time: on the engine's clock; None means now.
        """
        arrival = self._clock() if arrival_time is None else arrival_time
        live = LiveRequest(key, request, self._facts.eos_token_ids, arrival)
        if request.images and request.images[0].goes_on:
            live.recording = Recording(request.images[0], self._facts.frames_per_token)
        order = (self._policy.rank(request.priority), next(self._arrivals))
        seed = self._seeds.draw() if request.sampling.seed is None else request.sampling.seed
        limits = self._facts.max_model_len, self._facts.frames_per_token
        live.sequences = make_sequences(live, order, *limits, seed=seed)
        if form := self._facts.routed_experts:
            for each in live.sequences:
                start = request.sampling.routed_experts_prompt_start
                first = len(each.token_ids) - 1 if each.num_output_tokens else start  # what other workers have reported
                each.routed = RoutedRows(form.bytes_per_token, first)
        self._requests.enter(live)
        self._hand_overs.add(live)
        if self._drafter is not None:
            self._drafter.enter(live, self.num_waiting)
        if self._requests.has_too_many_logprobs(live):
            error = Overloaded("Other requests with very many logprobs are running; try again when some have finished.")
            self._requests.end(live, FinishReason.ERROR, error)
        else:
            self._constraints.add(live)

    def abort(self, key: int) -> None:
        """Ends a request and frees everything it holds; the next step reports it. Ignores unknown keys."""
        if live := self._requests.find(key):
            self._requests.end(live, FinishReason.ABORT)

    def stop(self, key: int, choice_index: int, num_output_tokens: int) -> None:
        """Ends one sequence of a request, in whose text the caller has found a stop string; the next step reports it.

        Args:
            choice_index: ignored if it is unknown or has ended.
            num_output_tokens: number of its output tokens that count as usage.
        """
        live = self._requests.find(key)
        sequence = live.find(choice_index) if live else None
        if sequence is not None:
            self._requests.stop(sequence, num_output_tokens)

    def hear(self, key: int, audio: Image, *, is_last: bool) -> None:
        """Goes on with the recording of a request, which ends if the audio is not what it takes. Ignores unknown keys.

        Args:
            is_last: the recording is over.
        """
        if not (live := self._requests.find(key)):
            return
        try:
            if live.recording is None:
                raise InvalidRequest("appends: the recording of this request does not go on.", parameter="appends")
            live.recording.append(audio, is_last=is_last)
        except InvalidRequest as error:
            self._requests.end(live, FinishReason.ERROR, error)
            return
        if is_last:
            live.sequences[0].end_with_recording(live.recording.num_tokens)

    def refuse(self, key: int, error: QuireError) -> None:
        """Ends a request with an error. Ignores unknown keys."""
        if live := self._requests.find(key):
            self._requests.end(live, FinishReason.ERROR, error)

    def abort_all(self) -> None:
        """Ends all requests, like `abort`."""
        for live in self._requests:
            self._requests.end(live, FinishReason.ABORT)

    def upkeep(self, command: Upkeep) -> list[str]:
        """Has the ranks run a command other than a step, once no step is under way; see Executor.upkeep."""
        self._collect_all()
        return self._executor.upkeep(command)

    def name_weights(self, version: str) -> None:
        """Gives the weights a version, which is reported with the tokens that they compute from now on."""
        self._collect_all()
        self._requests.weight_version = version

    def retire_adapter(self, adapter: Adapter, gone: Callable[[], None]) -> None:
        """Forgets an adapter, which no new request may use, once the last request that uses it has ended.

        Args:
            gone: called at that time, which may be now.
        """
        self._scheduler.adapters.retire(adapter, gone)

    def num_requests_with(self, adapter: Adapter) -> int:
        """Number of requests that use an adapter. May be called from any thread."""
        return self._scheduler.adapters.num_requests(adapter.key)

    def step(self) -> list[SequenceDelta]:
        """Plans a step and submits it to the executor; returns the deltas of the oldest step under way.

        If the executor runs steps asynchronously, the next step is planned and submitted before the tokens of the last
        one are known: a sequence that ends with them gets one step too many, whose results are discarded.

        Raises:
            ExecutorDead: the executor no longer works; call `give_up` and exit.
        """
        self._expire()
        self._constraints.start_ready()
        if not self.rest.asleep:
            self._advance()
        self._hand_overs.settle()
        return self._hand_overs.pass_on(self._requests.take())

    def _advance(self) -> None:
        batch = self._scheduler.schedule(self._clock())
        if batch.has_work:
            self._submit(batch)
            self._send_masks(batch)
        self._is_waiting = not any(each.sequences for each in (batch, *self._in_flight))
        while self._in_flight and (len(self._in_flight) >= self._most_in_flight or not batch.sequences):
            oldest = self._in_flight[0]
            self._collect()
            if oldest.sequences and not batch.sequences:  # with its results, the next step may have sequences
                break

    def _collect_all(self) -> None:
        """Collects results until no step is under way."""
        while self._in_flight:
            self._collect()

    @property
    def _most_in_flight(self) -> int:
        """Most steps under way at once; fewer while drafting, as drafts depend on all tokens of their sequences."""
        is_drafting = self._drafter is not None and self._drafter.is_active
        return self._facts.num_stages if is_drafting else self._max_in_flight

    def give_up(self, error: QuireError) -> list[SequenceDelta]:
        """Ends all requests with an error, for an engine about to exit; returns their last deltas."""
        for live in self._requests:
            self._requests.end(live, FinishReason.ERROR, error)
        return [*self._hand_overs.let_go(), *self._requests.take()]

    def close(self) -> None:
        """Closes the executor and the grammars."""
        self._constraints.close()
        self._executor.close()

    def load(self) -> EngineLoad:
        """Current load."""
        scheduler = self._scheduler
        return EngineLoad(
            running_sequences=scheduler.num_running,
            waiting_requests=self.num_waiting,
            used_kv_blocks=self._kv_cache.num_used_blocks,
            total_kv_blocks=self._kv_cache.num_blocks,
            swapped_sequences=scheduler.num_preempted if self._kv_cache.num_host_blocks else 0,
            used_host_blocks=self._kv_cache.num_used_host_blocks,
            total_host_blocks=self._kv_cache.num_host_blocks,
            waiting_prefill_tokens=scheduler.num_waiting_tokens,
            step=scheduler.num_steps,
            busy=self._is_stepping,
            counters=self._counters(),
            adapters=scheduler.adapter_loads(),
            status=self.rest.status(),
        )

    def take_cache_changes(self) -> Changes | None:
        """Returns the prefix cache changes since the last call; None if there are none."""
        return self._kv_cache.take_changes()

    def cache_contents(self) -> CacheContents:
        """Everything that the prefix cache holds."""
        return self._kv_cache.contents()

    def check(self) -> None:
        """Verifies that nothing leaked.

        Raises:
            RuntimeError: a block or slot is lost, or a sequence's counters are wrong.
        """
        self._scheduler.check()

    def _submit(self, batch: Batch) -> None:
        now = self._clock()
        for sequence in batch.started:
            if sequence.owner.first_scheduled_time is None:
                sequence.owner.first_scheduled_time = now
                sequence.owner.step_seconds_before = self._statistics.step_seconds
        try:
            self._executor.submit(batch.plan())
        except Exception as error:
            self._fail(batch, error)
        else:
            self._in_flight.append(batch)

    def _send_masks(self, batch: Batch) -> None:
        """Sends a step's masks, once the earlier tokens they depend on are known; its forward pass runs meanwhile."""
        if not batch.awaits_masks or batch not in self._in_flight:  # it could not be submitted
            return
        while self._in_flight[0] is not batch and self._constraints.await_tokens(batch):
            self._collect()
        try:
            self._executor.send_masks(self._constraints.masks(batch))
        except Exception as error:
            self._in_flight.pop()
            self._fail(batch, error)

    def _collect(self) -> None:
        batch = self._in_flight.popleft()
        try:
            result = self._executor.collect()
        except Exception as error:
            self._fail(batch, error)
        else:
            if batch.sequences:
                self._failures = 0
            self._processor.process(batch, result)
            if self._drafter is not None and batch.sequences:
                self._drafter.ended(batch, result.draft_milliseconds / 1000)

    def _fail(self, batch: Batch, error: Exception) -> None:
        """Ends the requests of a step that raised; the others continue.

        Raises:
            ExecutorDead: the executor is dead, or too many steps in a row have failed.
        """
        self._failures += 1
        logger.error("step %d with %d sequences failed", batch.step, len(batch.sequences), exc_info=error)
        # Those that listen are lost too: it is unknown what the ranks have encoded of their recordings.
        lost = [*batch.holders().values(), *self._scheduler.images.recordings.sequences]
        for live in {sequence.owner.key: sequence.owner for sequence in lost}.values():
            fault = Internal("The engine failed while running this request; try again.", reason=ENGINE_FAULT)
            self._requests.end(live, FinishReason.ERROR, fault)
        self._scheduler.adapters.redo(batch.adapters)
        self._scheduler.images.redo(batch.images)
        # A failed step may have written anywhere: later requests must not use blocks computed before it or from those.
        self._kv_cache.clear(self._scheduler.live_tables())
        if isinstance(error, ExecutorDead) or self._failures >= MAX_CONSECUTIVE_FAILURES:
            raise ExecutorDead(f"the executor is dead after {self._failures} failed steps: {error}") from error

    def _expire(self) -> None:
        """Ends running and waiting requests whose deadline has passed."""
        for live in self._requests.expired():
            error = DeadlineExceeded(
                f"The request did not finish within its time limit of {live.request.timeout_seconds:g} s; allow more "
                "time or ask for fewer tokens.",
                parameter="timeout_ms",
            )
            self._requests.end(live, FinishReason.ERROR, error)

    def _counters(self) -> Counters:
        statistics, scheduler = self._statistics, self._scheduler
        lookups, images = scheduler.lookups, scheduler.images
        return Counters(
            prompt_tokens=statistics.prompt_tokens,
            generation_tokens=statistics.generation_tokens,
            preemptions=scheduler.preemptions,
            prefix_cache_queries=lookups.queries if self._kv_cache.is_caching else 0,
            prefix_cache_hits=lookups.hits,
            external_cache_queries=lookups.external_queries if self._kv_cache.has_connector else 0,
            external_cache_hits=lookups.external_hits,
            host_cache_hits=lookups.host_hits,
            **self._kv_cache.moved_bytes,
            computed_tokens=statistics.computed_tokens,
            dual_batch_steps=statistics.dual_batch_steps,
            encoded_media=images.num_encoded,
            pulled_media=images.num_pulled,
            failed_media_pulls=images.num_failed_pulls,
            **(self._drafter.counters() if self._drafter is not None else {}),
            iteration_tokens=statistics.iteration_tokens.snapshot(),
            model_forward_milliseconds=statistics.forward_milliseconds.snapshot(),
            model_execute_milliseconds=statistics.execute_milliseconds.snapshot(),
        )
