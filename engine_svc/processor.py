"""After a step: computed tokens are booked, sampled ones appended and reported, finished sequences ended."""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from engine_svc.counters import EngineStatistics
from engine_svc.kv_cache.manager import KvCacheManager
from engine_svc.ledger import Ledger
from engine_svc.outputs import FinishReason, SequenceDelta
from engine_svc.plan import PositionLogprobs, StepResult
from engine_svc.scheduler.batch import Batch
from engine_svc.scheduler.scheduler import Scheduler
from engine_svc.scheduler.sequence import Sequence
from engine_svc.stopping import stop_after
from quire.errors import Internal

logger = logging.getLogger(__name__)

ENGINE_FAULT = "ENGINE_FAULT"


class StepProcessor:
    """Applies step results to the living sequences."""

    def __init__(
        self,
        scheduler: Scheduler,
        kv_cache: KvCacheManager,
        ledger: Ledger,
        statistics: EngineStatistics,
        clock: Callable[[], float],
    ) -> None:
        self._scheduler = scheduler
        self._kv_cache = kv_cache
        self._ledger = ledger
        self._statistics = statistics
        self._clock = clock

    def process(self, batch: Batch, result: StepResult) -> None:
        """Books what a step computed and sampled.

        Raises:
            RuntimeError: tokens are missing. The sequences would wait for them forever.
        """
        if len(result.sampled_slots) + len(result.failed_slots) < batch.num_samples:
            raise RuntimeError(f"{len(result.sampled_slots)} of {batch.num_samples} tokens came back from a step")
        now = self._clock()
        for slot, message in result.failed_slots.items():
            self._fail(slot, message)
        self._advance(batch)
        for slot, positions in result.prompt_logprobs.items():
            self._collect_prompt_logprobs(slot, positions)
        for slot, token_id in zip(result.sampled_slots, result.sampled_token_ids, strict=True):
            self._append(slot, token_id, result.logprobs.get(slot), now)
        for sequence in batch.prompt_only:
            self._finish_prompt_only(sequence, now)
        self._statistics.iteration_tokens.observe(sum(batch.counts))
        self._statistics.forward_milliseconds.observe(result.forward_milliseconds)
        self._statistics.execute_milliseconds.observe(result.execute_milliseconds)

    def _advance(self, batch: Batch) -> None:
        """The scheduled tokens are computed, and blocks that became full can be found by others."""
        for sequence, count in zip(batch.sequences, batch.counts, strict=True):
            if sequence.slot >= 0:  # else it failed in this step and holds no blocks any more
                sequence.num_computed_tokens += count
                self._kv_cache.make_findable(sequence.table, sequence.token_ids, sequence.num_computed_tokens)
                self._kv_cache.release_passed(sequence.table, sequence.num_computed_tokens)

    def _append(self, slot: int, token_id: int, logprobs: PositionLogprobs | None, now: float) -> None:
        """Appends a sampled token to the slot's sequence, and reports it."""
        sequence = self._scheduler.by_slot[slot]
        if sequence is None or not sequence.generates:  # failed in this step, or wants nothing but its prompt
            return
        live = sequence.owner
        live.completion_tokens += 1
        live.last_token_time = now
        self._statistics.generation_tokens += 1
        if live.first_token_time is None:
            live.first_token_time = now
            self._finish_prefill(sequence)
        sequence.token_ids.append(token_id)
        prompt_logprobs = None
        if live.prompt_logprobs:
            prompt_logprobs, live.prompt_logprobs = live.prompt_logprobs, []
        reported = None if logprobs is None else [logprobs]
        stop = stop_after(sequence, token_id)
        if stop is None:
            self._ledger.report(SequenceDelta(live.key, sequence.choice_index, [token_id], reported, prompt_logprobs))
        else:
            self._ledger.finish(sequence, stop[0], [token_id], reported, prompt_logprobs, stop[1])

    def _finish_prefill(self, sequence: Sequence) -> None:
        """The prompt is computed, for the first time: the request's other sequences share its blocks from here on."""
        self._statistics.prompt_tokens += sequence.num_prompt_tokens
        for child in sequence.owner.sequences[1:]:
            self._scheduler.fork(sequence, child)

    def _finish_prompt_only(self, sequence: Sequence, now: float) -> None:
        """Ends a request that generates nothing, once its prompt is computed."""
        if sequence.slot < 0 or sequence.num_uncomputed_tokens:
            return
        live = sequence.owner
        live.first_token_time = now
        self._statistics.prompt_tokens += sequence.num_prompt_tokens
        for each in live.sequences:
            logprobs = live.prompt_logprobs if each is sequence else None
            self._ledger.finish(each, FinishReason.LENGTH, [], prompt_logprobs=logprobs)

    def _collect_prompt_logprobs(self, slot: int, positions: list[PositionLogprobs]) -> None:
        sequence = self._scheduler.by_slot[slot]
        if sequence is None or not sequence.wants_prompt_logprobs:
            return
        collected = sequence.owner.prompt_logprobs
        collected.extend(positions)
        if len(collected) >= sequence.num_prompt_tokens - 1:
            sequence.wants_prompt_logprobs = False
            sequence.sampling = msgspec.structs.replace(sequence.sampling, num_prompt_logprobs=None)

    def _fail(self, slot: int, message: str) -> None:
        sequence = self._scheduler.by_slot[slot]
        if sequence is not None:
            logger.error("request %s failed in the model: %s", sequence.owner.request.request_id, message)
            error = Internal("The model failed on this request; the engine's log has the details.", reason=ENGINE_FAULT)
            self._ledger.end(sequence.owner, FinishReason.ERROR, error)
