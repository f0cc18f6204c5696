"""Turns a step's hidden states into results: sampled tokens, prompt log-probabilities, draft tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from engine_svc.loader.model import Model
from engine_svc.parallel.vocabulary import VocabularyPart
from engine_svc.plan import NewSequence, ScheduledSequence, TokenMasks
from engine_svc.runner.adapters import StepAdapters
from engine_svc.runner.batch import FlatBatch, SlotBuffers
from engine_svc.runner.drafting import Drafting, Guesses
from engine_svc.runner.pending import BegunStep, PendingStep
from engine_svc.sampling.isolation import blame
from engine_svc.sampling.logprobs import ScoredPositions
from engine_svc.sampling.rows import SampledRows
from engine_svc.sampling.sampler import BrokenRows, SampleOutput, Sampler
from engine_svc.sampling.verification import read_runs, sample_runs
from engine_svc.transfer import to_device, to_host

logger = logging.getLogger(__name__)

_SCORED_ROWS = 256


class Answers:
    """Computes the results of steps, on each rank that has the model's last layers."""

    def __init__(
        self, model: Model, hidden_size: int, sampler: Sampler, buffers: SlotBuffers, adapters: StepAdapters,
        drafting: Drafting | None,
    ) -> None:  # fmt: skip
        self._model, self._hidden_size, self._sampler = model, hidden_size, sampler
        self._buffers, self._adapters = buffers, adapters
        self.drafting = drafting
        self.forgives = False  # whether to go on without a draft model that fails; False during warm-up
        self._prompts: dict[int, tuple[int, int]] = {}  # slot → number of prompt tokens, prompt logprobs wanted

    def reserve(self, num_tokens: int) -> None:
        """See Sampler.reserve."""
        self._sampler.reserve(num_tokens)

    def expect(self, sequence: NewSequence) -> None:
        """Notes, before a sequence's first step, whether the log-probabilities of its prompt are wanted."""
        self._prompts.pop(sequence.slot, None)
        if sequence.sampling.num_prompt_logprobs is not None:
            self._prompts[sequence.slot] = (sequence.num_prompt_tokens, sequence.sampling.num_prompt_logprobs)

    def output_lens(self, scheduled: Sequence[ScheduledSequence]) -> list[int]:
        """How many of the last rows of each sequence are needed.

        These are the rows that are sampled from, but at least one, which shows whether the sequence has overflowed; or
        all rows of a sequence whose prompt log-probabilities are wanted.
        """
        return [
            each.num_new_tokens if each.slot in self._prompts else max(1, each.num_sampled_positions)
            for each in scheduled
        ]

    def add(self, sequence: NewSequence, failed: dict[int, str]) -> None:
        """Sets up the sampling parameters of a sequence that takes a slot; an error goes to `failed` instead."""
        try:
            num_prompt = sequence.num_prompt_tokens
            num_unknown = num_prompt if sequence.prompt_embeds is not None else 0
            self._sampler.add(sequence.slot, sequence.sampling, sequence.token_ids, num_prompt, num_unknown)
        except Exception as error:
            failed[sequence.slot] = blame(sequence.slot, "its sampling parameters cannot be applied", error)

    def make(
        self, step: BegunStep, batch: FlatBatch, hidden: torch.Tensor, masks: TokenMasks | None
    ) -> tuple[PendingStep, SampledRows]:
        """Samples and scores a step.

        Args:
            masks: the token masks that the plan awaits, if any.

        Returns:
            The pending step, and the sampled rows, whose tokens have been written to the slot buffers.
        """
        scheduled, failed = step.plan.scheduled, step.failed
        hidden, features = self._split(hidden)
        prompt_scores = self._score_prompts(batch, hidden, failed) if self._prompts else {}
        at, rows = batch.sampled(step.plan)
        outputs = self._sample(hidden, at, rows, failed, masks) if at else []
        rest = [index for index, sequence in enumerate(scheduled) if not sequence.num_sampled_positions]
        broken = self._find_broken(batch, hidden, rest) if rest else None
        step.timer.mark()
        guesses = self._guess(self.drafting, step, batch, features, outputs) if self.drafting else None
        return PendingStep(step, outputs, prompt_scores, broken, guesses), rows

    def _split(self, computed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Splits a pass's output into hidden states and the features that a draft model reads.

        The features are the hidden states themselves, or what is tapped and returned behind them.
        """
        size = self._hidden_size
        if computed.shape[-1] == size:
            return computed, computed
        return computed[:, :size].contiguous(), computed[:, size:]

    def _guess(
        self, drafting: Drafting, step: BegunStep, batch: FlatBatch, features: torch.Tensor, outputs: list[SampleOutput]
    ) -> Guesses:
        """Runs the draft model. Waits for the sampled tokens first: which of them count decides where it continues."""
        if not drafting.is_due(step.plan.scheduled):
            step.timer.mark()
            return Guesses()
        step.timer.wait()
        runs = read_runs(outputs)
        well = runs.token_ids.keys() - runs.failed.keys() - step.failed.keys()
        lengths = {
            sequence.slot: length - len(sequence.draft_token_ids) + len(runs.token_ids[sequence.slot])
            for sequence, length in zip(step.plan.scheduled, batch.lengths, strict=True)
            if sequence.slot in well
        }
        try:
            return drafting.guess(step.plan.scheduled, batch, lengths, features)
        except Exception as error:
            if not self.forgives:
                raise
            logger.error("the draft model has failed; decoding continues without it", exc_info=error)
            self.drafting = None
            return Guesses(failure=f"{type(error).__name__}: {error}")
        finally:
            step.timer.mark()

    def _sample(
        self, hidden: torch.Tensor, at: list[int], rows: SampledRows, failed: dict[int, str], masks: TokenMasks | None
    ) -> list[SampleOutput]:
        index = None if len(at) == len(hidden) else to_device(at, hidden.device)
        part = self._part(len(rows), self._sampler.takes_parts(rows))
        with self._adapters.head_rows(rows.slots):
            logits = self._model.logits(hidden, index) if part is None else self._model.own_logits(hidden, index)
        outputs, alone = sample_runs(self._sampler, logits, rows, masks, part)
        failed |= alone
        for output in outputs:
            self._buffers.record(output.rows, output.on_device)
        return outputs

    def _part(self, rows: int, takes_parts: bool) -> VocabularyPart | None:
        """The vocabulary part whose logits this rank computes and keeps; None means logits are gathered instead."""
        part = self._model.vocabulary
        return part if part is not None and takes_parts and part.is_worth(rows) else None

    def _find_broken(self, batch: FlatBatch, hidden: torch.Tensor, indices: list[int]) -> BrokenRows:
        """Finds overflowed sequences among those that sample nothing, by their last row, which has seen all others."""
        rows = to_device(batch.output_start[1:][indices] - 1, hidden.device)
        return BrokenRows([batch.slots[index] for index in indices], to_host(~hidden[rows].isfinite().all(-1)))

    def _score_prompts(
        self, batch: FlatBatch, hidden: torch.Tensor, failed: dict[int, str]
    ) -> dict[int, list[ScoredPositions]]:
        """Log-probabilities of the prompts that want them: the row at position p scores the token at p + 1."""
        found = {}
        for index, slot in enumerate(batch.slots):
            num_prompt, count = self._prompts.get(slot, (0, 0))
            first = batch.computed[index]
            last = min(batch.lengths[index], num_prompt - 1)
            if last > first:
                start = int(batch.output_start[index])
                targets = self._buffers.token_ids[slot, first + 1 : last + 1]
                try:
                    found[slot] = self._score(slot, hidden[start : start + last - first], targets, first + 1, count)
                except Exception as error:
                    failed[slot] = blame(slot, "its prompt's log-probabilities could not be computed", error)
        return found

    def _score(
        self, slot: int, hidden: torch.Tensor, targets: torch.Tensor, known: int, count: int
    ) -> list[ScoredPositions]:
        """Scores a few rows at a time: the logits of a whole prompt chunk could take gigabytes.

        Args:
            known: number of tokens before the first target.
        """
        found = []
        for start in range(0, len(targets), _SCORED_ROWS):
            some = hidden[start : start + _SCORED_ROWS]
            part = self._part(len(some), self._sampler.scores_prompt_parts(count))
            with self._adapters.head_rows([slot] * len(some)):
                logits = self._model.logits(some) if part is None else self._model.own_logits(some)
            before = list(range(known + start, known + start + len(logits)))
            tokens = targets[start : start + _SCORED_ROWS]
            found.append(self._sampler.score_prompt(slot, logits, tokens, before, count, part))
        return found
