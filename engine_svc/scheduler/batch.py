"""The batch of one step, while it is put together."""

from __future__ import annotations

from engine_svc.plan import NewSequence, ScheduledSequence, StepPlan
from engine_svc.scheduler.sequence import Sequence


class Batch:
    """Which sequences run in this step, within its token budget."""

    def __init__(self, step: int, token_budget: int) -> None:
        self.step = step
        self.budget = token_budget  # tokens left
        self.sequences: list[Sequence] = []  # one for each of the plan's `scheduled`
        self.counts: list[int] = []  # how many tokens each of them computes
        self.num_samples = 0  # how many of them sample a token
        self.prompt_only: list[Sequence] = []  # those of them that generate nothing
        self.partial_prefills = 0  # those of them whose prompt stays incomplete
        self.long_partial_prefills = 0
        self.preempted = False
        self.unscheduled_prefill_tokens = 0
        self.copies_out: list[tuple[int, int]] = []  # (device block, host block)
        self.copies_in: list[tuple[int, int]] = []  # (host block, device block)
        self._new: list[NewSequence] = []
        self._scheduled: list[ScheduledSequence] = []

    def add(self, sequence: Sequence, count: int, new_block_ids: list[int]) -> None:
        """Lets a sequence compute its next `count` tokens."""
        computed = sequence.num_computed_tokens
        left = len(sequence.token_ids) - computed - count
        samples = left == 0 and sequence.generates
        self._scheduled.append(ScheduledSequence(sequence.slot, computed, count, samples, new_block_ids))
        self.sequences.append(sequence)
        self.counts.append(count)
        self.num_samples += samples
        if not sequence.generates:
            self.prompt_only.append(sequence)
        self.unscheduled_prefill_tokens += left
        self.budget -= count

    def add_new(self, sequence: Sequence, count: int) -> None:
        """The same for one that has just been given its slot."""
        self._new.append(
            NewSequence(
                slot=sequence.slot,
                token_ids=sequence.token_ids.copy(),
                num_prompt_tokens=sequence.num_prompt_tokens,
                num_computed_tokens=sequence.num_computed_tokens,
                block_ids=sequence.table.block_ids.copy(),
                sampling=sequence.sampling,
            )
        )
        self.add(sequence, count, [])

    def plan(self) -> StepPlan:
        """The step as the executor gets it."""
        return StepPlan(self.step, self._new, self._scheduled, self.copies_out, self.copies_in)
