"""Processes step results: books computed tokens, appends and reports sampled ones, and ends finished sequences."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import msgspec

from engine_svc.core.live_requests import LiveRequests
from engine_svc.core.statistics import EngineStatistics
from engine_svc.kv_cache.manager import KvCacheManager
from engine_svc.plan import OVERFLOW, PositionLogprobs, StepResult
from engine_svc.requests.outputs import FinishReason, SequenceDelta
from engine_svc.requests.request import GenerationRequest
from engine_svc.requests.sequence import LiveRequest, Sequence
from engine_svc.requests.stopping import end_of_grammar, find_ending
from engine_svc.scheduler.batch import Batch
from engine_svc.scheduler.drafter import Drafter
from engine_svc.scheduler.scheduler import Scheduler
from quire.errors import REQUEST_FAULT, Internal, InvalidRequest, QuireError
from quire.sampling import SamplingParameters

logger = logging.getLogger(__name__)


class StepProcessor:
    """Applies step results to the live sequences."""

    def __init__(
        self,
        scheduler: Scheduler,
        kv_cache: KvCacheManager,
        requests: LiveRequests,
        statistics: EngineStatistics,
        clock: Callable[[], float],
        drafter: Drafter | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._kv_cache = kv_cache
        self._requests = requests
        self._statistics = statistics
        self._clock = clock
        self._drafter = drafter

    def process(self, batch: Batch, result: StepResult) -> None:
        """Books what a step computed and sampled.

        Raises:
            RuntimeError: sampled tokens are missing, for which the sequences would wait forever.
        """
        if result.ended_transfers:
            self._kv_cache.end_transfers(result.ended_transfers)
        if result.read_adapters:
            self._end_reads(result.read_adapters)
        if result.encoded_images:
            self._end_encodings(result.encoded_images)
        if not batch.sequences:
            return
        if missing := batch.sampling.keys() - result.sampled_slots - result.failed_slots.keys():
            raise RuntimeError(f"{len(missing)} of {len(batch.sampling)} tokens did not come back from a step")
        now = self._clock()
        before = self._statistics.prompt_tokens + self._statistics.generation_tokens
        for slot, message in result.failed_slots.items():
            if sequence := batch.holders().get(slot):
                self._fail(sequence, message)
        holders, computed, book = batch.holders(), batch.computed, self._kv_cache.book
        for slot, sequence in holders.items():
            book(sequence.table, sequence.token_ids, computed[slot])
        for slot, positions in result.prompt_logprobs.items():
            if sequence := holders.get(slot):
                self._collect_prompt_logprobs(sequence, positions)
        for slot, (first, rows) in result.routed_experts.items():
            if (sequence := holders.get(slot)) and sequence.routed is not None:
                sequence.routed.add(first, rows)
        sampling, logprobs = batch.sampling, result.logprobs
        for slot, run in zip(result.sampled_slots, result.sampled_token_ids, strict=True):
            if sequence := holders.get(slot):
                most, masks = batch.longest_runs.get(slot), result.sampling_masks.get(slot)
                self._append(sequence, run, sampling[slot], most, logprobs.get(slot), masks, now)
        for slot, guessed in result.draft_token_ids.items():
            if self._drafter is not None and (sequence := holders.get(slot)):
                self._drafter.take(sequence, guessed)
        if result.draft_failure and self._drafter is not None:
            self._drafter.fail(result.draft_failure)
        for slot in batch.completed_prompts:
            if sequence := holders.get(slot):
                self._finish_prompt_only(sequence, now)
        self._statistics.computed_tokens += batch.num_tokens
        self._statistics.dual_batch_steps += result.is_dual_batch
        if tokens := self._statistics.prompt_tokens + self._statistics.generation_tokens - before:
            self._statistics.iteration_tokens.observe(tokens)
        self._statistics.forward_milliseconds.observe(result.forward_milliseconds)
        self._statistics.execute_milliseconds.observe(result.execute_milliseconds)

    def _end_reads(self, read_adapters: Mapping[int, str]) -> None:
        """Books adapters that were read; ends the requests that wait for one that could not be."""
        for sequence, why in self._scheduler.adapters.end_reads(read_adapters):
            name = sequence.owner.request.model
            self._end_faulty(sequence.owner, f"The adapter {name} cannot be read: {why}.")

    def _end_encodings(self, encoded_images: Mapping[int, str]) -> None:
        """Books images that were encoded; ends the requests with one that could not be."""
        for sequence, why in self._scheduler.images.end(encoded_images):
            live, message = sequence.owner, f"The model cannot encode one of the images: {why}."
            if any(image.is_embedded for image in live.request.images) and self._requests.find(live.key) is live:
                self._requests.end(live, FinishReason.ERROR, InvalidRequest(message, parameter="messages"))
            else:
                self._end_faulty(live, message)

    def _end_faulty(self, live: LiveRequest, message: str) -> None:
        """Ends a request that cannot run, unless another of its sequences has ended it."""
        if self._requests.find(live.key) is live:
            logger.error("request %s: %s", live.request.request_id, message)
            self._requests.end(live, FinishReason.ERROR, Internal(message, reason=REQUEST_FAULT))

    def _append(
        self,
        sequence: Sequence,
        run: list[int],
        num_sampled_positions: int,
        most: int | None,
        logprobs: list[PositionLogprobs] | None,
        masks: list[list[int]] | None,
        now: float,
    ) -> None:
        """Appends a run of tokens as far as it counts, and reports it.

        Args:
            most: number of its tokens before the grammar's end; None means that no end is known.
        """
        live = sequence.owner
        if live.first_token_time is None:
            live.first_token_time = now
            self._finish_prefill(sequence)
        num_right = len(run) - 1
        is_past_end = most is not None and len(run) > most
        run = run[:most]
        if ending := find_ending(sequence, run):
            run = run[: ending.num_tokens]
        logprobs, masks = logprobs and logprobs[: len(run)], masks and masks[: len(run)]
        sequence.append(run, num_sampled_positions)
        if is_past_end and sequence.follower is not None:
            sequence.follower.find_end()
        if (count := len(run)) > 1:  # drafted tokens were accepted, and are computed
            self._kv_cache.book(sequence.table, sequence.token_ids, sequence.num_computed_tokens)
        if num_sampled_positions > 1 and self._drafter is not None:
            self._drafter.verified(sequence, num_sampled_positions - 1, num_right, count)
        live.completion_tokens += count
        live.last_token_time = now
        self._statistics.generation_tokens += count
        prompt_logprobs = None
        if live.prompt_logprobs:
            prompt_logprobs, live.prompt_logprobs = live.prompt_logprobs, []
        ending, routed = end_of_grammar(sequence, ending, count), sequence.take_routed(count)
        if ending is None:
            self._requests.report(
                SequenceDelta(
                    live.key, sequence.choice_index, run, logprobs, prompt_logprobs,
                    num_previous_tokens=sequence.num_output_tokens - count, routed_experts=routed,
                    sampling_masks=masks, weight_version=self._requests.weight_version,
                )
            )  # fmt: skip
        else:
            stop_token_id = ending.stop_token_id
            self._requests.finish(
                sequence, ending.reason, run, logprobs, prompt_logprobs, stop_token_id, routed, masks
            )  # fmt: skip

    def _finish_prefill(self, sequence: Sequence) -> None:
        """Starts the request's other sequences, which share the prompt's blocks, once it is first computed."""
        self._statistics.prompt_tokens += sequence.num_prompt_tokens
        for child in sequence.owner.sequences[1:]:
            # A resumed sequence has passed the prompt's end and may have released blocks that a fork at the prompt
            # would see. So the others look up what is cached.
            if sequence.owner.request.is_resumed:
                self._scheduler.add(child)
            else:
                self._scheduler.fork(sequence, child)

    def _finish_prompt_only(self, sequence: Sequence, now: float) -> None:
        """Ends a request that generates nothing, once its prompt is computed."""
        live = sequence.owner
        live.first_token_time = now
        self._statistics.prompt_tokens += sequence.num_prompt_tokens
        for each in live.sequences:
            logprobs = live.prompt_logprobs if each is sequence else None
            self._requests.finish(each, FinishReason.LENGTH, [], prompt_logprobs=logprobs)

    def _collect_prompt_logprobs(self, sequence: Sequence, positions: list[PositionLogprobs]) -> None:
        if not sequence.wants_prompt_logprobs:
            return
        collected = sequence.owner.prompt_logprobs
        collected.extend(positions)
        if len(collected) >= sequence.num_prompt_tokens - 1:
            sequence.wants_prompt_logprobs = False
            sequence.sampling = msgspec.structs.replace(sequence.sampling, num_prompt_logprobs=None)

    def _fail(self, sequence: Sequence, message: str) -> None:
        request = sequence.owner.request
        error = _failure(request, message)
        level = logging.INFO if isinstance(error, InvalidRequest) else logging.ERROR
        logger.log(level, "request %s: %s", request.request_id, error.message)
        self._requests.end(sequence.owner, FinishReason.ERROR, error)


def _failure(request: GenerationRequest, message: str) -> QuireError:
    """The error for the caller: an invalid request if its own parameters may have left no token to sample."""
    if message == OVERFLOW and request.constraint is not None and (name := _forbidding(request.sampling)):
        return InvalidRequest(
            f"{name} and the constraint on the output together leave no token to sample. Leave one of them out.",
            parameter=name,
        )
    return Internal(f"The engine failed on this request only: {message}.", reason=REQUEST_FAULT)


def _forbidding(sampling: SamplingParameters) -> str:
    """The field by which a request forbids tokens that its constraint may need; empty if there is none."""
    if sampling.allowed_token_ids:
        return "allowed_token_ids"
    if sampling.bad_words:
        return "bad_words"
    return "min_tokens" if sampling.min_tokens and sampling.stop_token_ids else ""
