"""The batch of one step while it is being built."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable

from engine_svc.kv_cache.block_table import BlockTable
from engine_svc.plan import NO_ADAPTER_CHANGES, NO_IMAGE_CHANGES, NO_TRANSFERS, NewSequence, ScheduledSequence, StepPlan
from engine_svc.requests.sequence import Sequence


class Batch:
    """The sequences that run in one step, within its token budget."""

    def __init__(self, step: int, token_budget: int, began: float = 0.0) -> None:
        """
        Args:
            began: when planning began, on the engine's clock.
        """
        self.step = step
        self.began = began
        self.budget = self._token_budget = token_budget  # tokens left
        self.sequences: dict[int, Sequence] = {}  # by slot, in the order of the plan's `scheduled`
        self.started: list[Sequence] = []  # the ones that get their slots in this step
        # slot → number of the sequence's tokens computed after the step, excluding drafted ones, which may be rejected.
        self.computed: dict[int, int] = {}
        self.sampling: dict[int, int] = {}  # slot → number of sampled positions, for sequences that sample
        self.num_drafts = 0  # drafted tokens that the step verifies
        self.num_wanted = 0  # tokens that the ranks should draft after it
        self.drafts: dict[int, tuple[int, ...]] = {}  # slot → drafted tokens, for sequences that have any
        # slot → most tokens of the sequence's run, where a grammar may end it before the last sampled position.
        self.longest_runs: dict[int, int] = {}
        self.completed_prompts: list[int] = []  # slots of sequences that generate nothing and finish here
        self.partial_prefills = 0  # sequences whose prompt is still incomplete after the step
        self.long_partial_prefills = 0
        self.preempted = False
        self.awaits_masks = False  # a sequence that samples follows a grammar
        self.unscheduled_prefill_tokens = 0
        self.transfers = NO_TRANSFERS
        self.adapters = NO_ADAPTER_CHANGES
        self.images = NO_IMAGE_CHANGES
        self.snapshots: dict[int, int] = {}  # see StepPlan
        self.is_transferring = False  # work is under way beside the steps: transfers, or encoding images
        self._new: list[NewSequence] = []
        self._scheduled: list[ScheduledSequence] = []

    @property
    def num_tokens(self) -> int:
        """Tokens that the step computes."""
        return self._token_budget - self.budget

    @property
    def has_work(self) -> bool:
        """Whether the step would do anything: compute, or advance block and adapter transfers."""
        return bool(self.sequences) or self.is_transferring

    def add(
        self,
        sequence: Sequence,
        count: int,
        new_block_ids: list[list[int]],
        drafts: tuple[int, ...] = (),
        wanted: int = 0,
    ) -> None:
        """Schedules the sequence's next `count` tokens and the drafted ones after them: see Sequence.advance.

        Args:
            wanted: tokens that the ranks should draft after what it samples.
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

    def add_new(
        self, sequence: Sequence, count: int, wanted: int = 0, image_keys: abc.Sequence[int] = (), snapshot: int = -1
    ) -> None:
        """Like `add`, for a sequence that has just been given its slot.

        Args:
            image_keys: see NewSequence.
            snapshot: see NewSequence.
        """
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
                images=[image.without_pixels() for image in sequence.owner.request.images],
                image_keys=list(image_keys),
                snapshot=snapshot,
            )
        )
        self.started.append(sequence)
        sequence.first_step = self.step
        self.add(sequence, count, [], wanted=wanted)

    def save_states(self, place: Callable[[BlockTable, int, int], int | None]) -> None:
        """Has the step save states of recurrent layers where there is a place: see KvCacheManager.place_snapshot."""
        for slot, sequence in self.sequences.items():
            if (found := place(sequence.table, self.computed[slot], sequence.num_prompt_tokens)) is not None:
                self.snapshots[slot] = found

    def holders(self) -> dict[int, Sequence]:
        """By slot, the sequences that still hold it; not those that have ended or been preempted or restarted since."""
        return {
            slot: sequence
            for slot, sequence in self.sequences.items()
            if sequence.slot == slot and sequence.first_step <= self.step
        }

    def plan(self) -> StepPlan:
        """The plan of the step, as passed to the executor."""
        return StepPlan(
            self.step, self._new, self._scheduled, self.transfers, self.awaits_masks, self.adapters, self.images,
            self.snapshots,
        )  # fmt: skip
