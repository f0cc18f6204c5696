"""The batch of one step, while it is put together."""

from __future__ import annotations

from engine_svc.plan import NO_ADAPTER_CHANGES, NO_TRANSFERS, NewSequence, ScheduledSequence, StepPlan
from engine_svc.requests.sequence import Sequence


class Batch:
    """Which sequences run in this step, within its token budget."""

    def __init__(self, step: int, token_budget: int, began: float = 0.0) -> None:
        """
        Args:
            began: when it began to be planned, on the engine's clock.
        """
        self.step = step
        self.began = began
        self.budget = self._token_budget = token_budget  # tokens left
        self.sequences: dict[int, Sequence] = {}  # by slot, in the order of the plan's `scheduled`
        self.started: list[Sequence] = []  # those of them that get their slots in this step
        # slot → its sequence's tokens that are computed after the step; drafted ones may turn out to be too.
        self.computed: dict[int, int] = {}
        self.sampling: dict[int, int] = {}  # slot → positions that its sequence samples, of those that sample
        self.num_drafts = 0  # drafted tokens that it verifies
        self.num_wanted = 0  # tokens that the ranks are to guess behind it
        self.drafts: dict[int, tuple[int, ...]] = {}  # slot → its sequence's drafted tokens, of those that have some
        # slot → tokens that its sequence's run may have, where a grammar may end it before the last position.
        self.longest_runs: dict[int, int] = {}
        self.completed_prompts: list[int] = []  # slots of those that generate nothing and are done after the step
        self.partial_prefills = 0  # those of them whose prompt stays incomplete
        self.long_partial_prefills = 0
        self.preempted = False
        self.awaits_masks = False  # some sequence that samples follows a grammar
        self.unscheduled_prefill_tokens = 0
        self.transfers = NO_TRANSFERS
        self.adapters = NO_ADAPTER_CHANGES
        self.is_transferring = False  # blocks or adapters are on their way that no step waits for
        self._new: list[NewSequence] = []
        self._scheduled: list[ScheduledSequence] = []

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return self._token_budget - self.budget

    @property
    def has_work(self) -> bool:
        """Whether the step would do anything: compute, or let blocks and adapters get on their way."""
        return bool(self.sequences) or self.is_transferring

    def add(
        self,
        sequence: Sequence,
        count: int,
        new_block_ids: list[list[int]],
        drafts: tuple[int, ...] = (),
        wanted: int = 0,
    ) -> None:
        """Lets a sequence compute its next `count` tokens and the drafted ones behind them: see Sequence.advance.

        Args:
            wanted: tokens that are to be guessed behind what it samples.
        """
        computed, slot, num_drafts = sequence.num_computed_tokens, sequence.slot, len(drafts)
        left = sequence.num_uncomputed_tokens - count
        total, sampled = count + num_drafts, 0
        if left:
            self.unscheduled_prefill_tokens += left
        elif sequence.generates:
            self.sampling[slot] = sampled = 1 + num_drafts
        else:
            self.completed_prompts.append(slot)
        if sampled and sequence.follower is not None:
            self.awaits_masks = True
        self._scheduled.append(ScheduledSequence(slot, computed, total, sampled, new_block_ids, drafts, wanted))
        self.num_drafts += num_drafts
        self.num_wanted += wanted
        if drafts:
            self.drafts[slot] = drafts
        self.sequences[slot] = sequence
        self.computed[slot] = computed + count
        sequence.advance(total, sampled)
        sequence.last_step = self.step
        self.budget -= total

    def add_new(self, sequence: Sequence, count: int, wanted: int = 0) -> None:
        """The same for one that has just been given its slot."""
        embeds = sequence.owner.request.prompt_embeds
        self._new.append(
            NewSequence(
                slot=sequence.slot,
                token_ids=list(sequence.token_ids),
                num_prompt_tokens=sequence.num_prompt_tokens,
                num_computed_tokens=sequence.num_computed_tokens,
                block_ids=[block_ids.copy() for block_ids in sequence.table.block_ids],
                sampling=sequence.sampling,
                prompt_embeds=embeds and embeds.rows(sequence.num_computed_tokens),
                adapter_slot=sequence.adapter_slot,
            )
        )
        self.started.append(sequence)
        sequence.first_step = self.step
        self.add(sequence, count, [], wanted=wanted)

    def holders(self) -> dict[int, Sequence]:
        """By slot, the sequences that still hold it: others ended or were preempted since, or have got it anew."""
        return {
            slot: sequence
            for slot, sequence in self.sequences.items()
            if sequence.slot == slot and sequence.first_step <= self.step
        }

    def plan(self) -> StepPlan:
        """The step as the executor gets it."""
        return StepPlan(self.step, self._new, self._scheduled, self.transfers, self.awaits_masks, self.adapters)
