"""The batch of one step, while it is put together."""

from __future__ import annotations

from engine_svc.plan import NewSequence, ScheduledSequence, StepPlan
from engine_svc.scheduler.sequence import Sequence


class Batch:
    """Which sequences run in this step, within its token budget."""

    def __init__(self, step: int, token_budget: int) -> None:
        self.step = step
        self.budget = token_budget  # tokens left
        self.sequences: dict[int, Sequence] = {}  # by slot, in the order of the plan's `scheduled`
        self.computed: dict[int, int] = {}  # slot → its sequence's tokens that are computed after the step
        self.num_tokens = 0  # that the step computes
        self.sampling: set[int] = set()  # slots of those that sample a token
        self.completed_prompts: list[int] = []  # slots of those that generate nothing and are done after the step
        self.partial_prefills = 0  # those of them whose prompt stays incomplete
        self.long_partial_prefills = 0
        self.preempted = False
        self.unscheduled_prefill_tokens = 0
        self.copies_out: list[tuple[int, int]] = []  # (device block, host block)
        self.copies_in: list[tuple[int, int]] = []  # (host block, device block)
        self._new: list[NewSequence] = []
        self._scheduled: list[ScheduledSequence] = []

    def add(self, sequence: Sequence, count: int, new_block_ids: list[list[int]]) -> None:
        """Lets a sequence compute its next `count` tokens, which count as computed from here on."""
        computed, slot = sequence.num_computed_tokens, sequence.slot
        left = sequence.num_uncomputed_tokens - count
        samples = left == 0 and sequence.generates
        self._scheduled.append(ScheduledSequence(slot, computed, count, samples, new_block_ids))
        self.sequences[slot] = sequence
        self.computed[slot] = sequence.num_computed_tokens = computed + count
        self.num_tokens += count
        sequence.num_pending_tokens += samples
        if samples:
            self.sampling.add(slot)
        if left == 0 and not sequence.generates:
            self.completed_prompts.append(sequence.slot)
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
                block_ids=[block_ids.copy() for block_ids in sequence.table.block_ids],
                sampling=sequence.sampling,
            )
        )
        self.add(sequence, count, [])

    def holders(self) -> dict[int, Sequence]:
        """By slot, the sequences that still hold it: others ended or were preempted since."""
        return {slot: sequence for slot, sequence in self.sequences.items() if sequence.slot == slot}

    def plan(self) -> StepPlan:
        """The step as the executor gets it."""
        return StepPlan(self.step, self._new, self._scheduled, self.copies_out, self.copies_in)
