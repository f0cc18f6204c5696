"""Drafting with a draft model: predicts the tokens that follow those that a step has sampled.

The draft's layers use the same block numbers as the target's, so sharing, swapping or freeing a block does so for both.
The draft's KV cache may lag behind the target's, because the draft is not run for sequences that want no draft tokens.
This module therefore tracks, for each slot, how many of its first positions the draft has computed, and for each block,
whether the draft has computed all of it: a prompt found in the prefix cache continues from there. A draft that reads
only tokens catches up, a limited number of positions per step. A draft that reads the target's hidden states runs on
what every step computes, at the latest when a block is full, and drafts nothing for sequences of which it has missed
positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.models.attention import LayerCache
from engine_svc.models.draft import Draft
from engine_svc.native.library import Kernels
from engine_svc.plan import NewSequence, ScheduledSequence, StepPlan, Transfers
from engine_svc.runner.adapters import StepAdapters
from engine_svc.runner.batch import FlatBatch, Inputs, SlotBuffers
from engine_svc.runner.graph_inputs import GraphInputs
from engine_svc.runner.graphs import PaddedShapes
from engine_svc.runner.inputs import Room
from engine_svc.runner.native_calls import NotedSteps
from engine_svc.runner.recorded import Capture, Forward, RecordedSteps
from engine_svc.sampling.sampler import Sampler
from engine_svc.transfer import to_device, to_host

# Stands for the number of computed positions of a slot that the draft can never compute.
_LOST = -1


@dataclass(frozen=True)
class Guesses:
    """The draft tokens of a step, on their way to the host."""

    # For each round: slots, and their tokens, int64, on the host once the step is done. Each round has at most as many
    # slots as the one before.
    rounds: list[tuple[list[int], torch.Tensor]] = field(default_factory=list)
    failure: str = ""

    def read(self) -> dict[int, list[int]]:
        """Draft tokens by slot, once the step is done."""
        found: dict[int, list[int]] = {}
        for slots, token_ids in self.rounds:
            for slot, token_id in zip(slots, token_ids.tolist(), strict=True):
                found.setdefault(slot, []).append(token_id)
        return found


@dataclass(frozen=True)
class _Row:
    """What the draft computes for one sequence after a step."""

    slot: int
    start: int  # the first position
    count: int
    known: int  # known tokens of the sequence, with those just sampled; 0 if it has sampled none
    wanted: int  # draft tokens


class Drafting:
    """The draft model of a rank. Order of calls: `allocate`; then `follow` and `guess` for each step.

    Attributes:
        reads_features: whether the draft needs the target's hidden states of every row.
    """

    def __init__(
        self, draft: Draft, buffers: SlotBuffers, sampler: Sampler, max_num_seqs: int, token_budget: int,
        device: torch.device,
    ) -> None:  # fmt: skip
        """
        Args:
            token_budget: the most positions that the draft computes to catch up in one step.
        """
        self._draft, self.reads_features = draft, bool(draft.model.feature_size)
        self._buffers = buffers
        self._sampler = sampler
        self._budget = token_budget
        self._device = device
        self._block_size = draft.attention.shape.block_tokens
        self.caches: list[torch.Tensor] = []
        self._computed = np.zeros(max_num_seqs, np.int64)  # number of computed first positions by slot, or _LOST
        self._complete = np.zeros(0, np.bool_)  # by block: whether the draft has computed all of it
        self._kept: set[int] = set()  # places in host memory that hold complete blocks
        self._held: dict[int, list[torch.Tensor]] = {}  # slot → features of the positions after the computed ones
        self._recorded: NotedSteps | RecordedSteps | None = None
        self._no_adapters = StepAdapters(None, max_num_seqs, token_budget)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of a block over all layers of the draft, on this rank."""
        return self._draft.attention.bytes_per_block(self._draft.num_layers)

    def allocate(self, num_blocks: int) -> None:
        """Allocates the caches of the draft's layers, and forgets what was computed."""
        self.caches = self._draft.attention.allocate(num_blocks, self._draft.num_layers)
        self._complete = np.zeros(num_blocks, np.bool_)
        self._computed[:] = 0
        self._kept.clear()
        self._held.clear()

    def release(self) -> None:
        """Frees the caches; `allocate` must be called next."""
        self.caches, self._recorded = [], None
        self._held.clear()

    def note_steps(self, kernels: Kernels, room: Room) -> None:
        """Records the draft's passes on a CPU.

        Args:
            room: sizes of the target's input buffers.
        """
        self._recorded = NotedSteps(self._prepare, kernels, self._room(room), 0, self._no_adapters, skips_rows=False)

    def make_graphs(self, capture: Capture, shapes: PaddedShapes, room: Room) -> int:
        """Records CUDA graphs of the draft's passes.

        Args:
            shapes: the shapes of the target's graphs.
            room: sizes of the target's input buffers.

        Returns:
            The number of all graphs of the draft, regardless of `shapes.most`, which limits how many are recorded.
        """
        shapes = replace(shapes, most_positions=self._draft.attention.most_positions, have_adapters=False)
        inputs = GraphInputs(self._room(room), 0, self._buffers.token_ids.view(-1), self._draft.attention)
        self._recorded = RecordedSteps(self._prepare, capture, shapes, inputs, self._no_adapters)
        return len(replace(shapes, most=None).all())

    def _room(self, room: Room) -> Room:
        """Sizes for the draft: one group of layers, and features in place of a previous stage's output."""
        return room._replace(groups=1, received=self._draft.model.feature_size, has_state_targets=False)

    def follow(self, plan: StepPlan) -> None:
        """Before a step computes, updates which blocks are complete and what each slot has computed."""
        self._follow_transfers(plan.transfers)
        for sequence in plan.new_sequences:
            self._begin(sequence)
        for scheduled in plan.scheduled:
            if scheduled.new_block_ids:
                self._complete[scheduled.new_block_ids[0]] = False

    def _follow_transfers(self, transfers: Transfers) -> None:
        """Tracks complete blocks through saves and loads.

        Blocks loaded from elsewhere than host memory count as not computed: whoever stored them may have had no draft.
        """
        for save in transfers.saves:
            for block, place in zip(save.block_ids, save.places, strict=True):
                if isinstance(place, int):
                    (self._kept.add if self._complete[block] else self._kept.discard)(place)
        for load in transfers.loads:
            self._complete[load.block_ids] = [place in self._kept for place in load.places]

    def _begin(self, sequence: NewSequence) -> None:
        """Starts a sequence: the draft continues after the complete ones of the blocks found in the prefix cache.

        All other blocks hold the remains of earlier sequences.
        """
        found = sequence.num_computed_tokens // self._block_size
        blocks = np.array(sequence.block_ids[0], np.int64)
        self._complete[blocks[found:]] = False
        missing = np.flatnonzero(~self._complete[blocks[:found]])
        complete = int(missing[0]) if len(missing) else found
        lost = sequence.prompt_embeds is not None or bool(sequence.images) or (self.reads_features and complete < found)
        self._computed[sequence.slot] = _LOST if lost else complete * self._block_size
        self._held.pop(sequence.slot, None)

    def is_due(self, scheduled: Sequence[ScheduledSequence]) -> bool:
        """Whether `guess` has anything to do after a step; a draft that reads features takes those of every step."""
        return self.reads_features or any(sequence.num_wanted_drafts for sequence in scheduled)

    def guess(
        self, scheduled: Sequence[ScheduledSequence], batch: FlatBatch, known: Mapping[int, int],
        features: torch.Tensor,
    ) -> Guesses:  # fmt: skip
        """Runs the draft over what the step has computed, and drafts the tokens that come next.

        Args:
            known: slot → number of tokens of its sequence, with the run just sampled; only sequences that sampled one.
            features: the target's features of the batch's rows.
        """
        if self.reads_features:
            self._hold(batch, known, features)
        rows = self._choose(scheduled, batch, known)
        hidden = self._catch_up(rows) if rows else None
        self._keep(batch.slots)
        if hidden is None:
            return Guesses()
        last = np.cumsum([row.count for row in rows]) - 1
        chosen = [index for index, row in enumerate(rows) if row.wanted]
        chosen.sort(key=lambda index: -rows[index].wanted)  # sequences that want the most tokens come first
        return self._go_on([rows[index] for index in chosen], hidden[to_device(last[chosen], self._device)])

    def _hold(self, batch: FlatBatch, known: Mapping[int, int], features: torch.Tensor) -> None:
        """Keeps the features of each sequence's valid positions, without those of rejected draft tokens."""
        for index, slot in enumerate(batch.slots):
            held = self._held.setdefault(slot, [])
            if self._computed[slot] + sum(map(len, held)) != batch.computed[index]:
                self._computed[slot] = _LOST
            if self._computed[slot] == _LOST:
                held.clear()
                continue
            end = known[slot] - 1 if slot in known else batch.lengths[index]
            start = batch.query_start[index]
            held.append(features[start : start + end - batch.computed[index]])

    def _keep(self, slots: Sequence[int]) -> None:
        """Clones features that the draft has not run over yet, so that they outlive the step."""
        for slot in self._held.keys() & slots:
            if parts := self._held[slot]:
                parts[-1] = parts[-1].clone()

    def _choose(self, scheduled: Sequence[ScheduledSequence], batch: FlatBatch, known: Mapping[int, int]) -> list[_Row]:
        """Chooses what to compute now, within the token budget."""
        rows, budget, ahead = [], self._budget, self.reads_features
        for sequence, length in zip(scheduled, batch.lengths, strict=True):
            slot, start = sequence.slot, int(self._computed[sequence.slot])
            end = known[slot] - ahead if slot in known else length
            # The last token may have no block yet: it gets one when the step that computes the token is planned.
            room = min(self._buffers.capacity(slot), self._draft.longest)
            if not sequence.num_wanted_drafts and not (ahead and self._completes(start, end)):
                continue
            if start == _LOST or not start < end <= room or not budget:
                continue
            count = min(end - start, budget)
            wanted = 0
            if slot in known and start + count == end:
                wanted = max(0, min(sequence.num_wanted_drafts, room - end + 1))
            rows.append(_Row(slot, start, count, known.get(slot, 0), wanted))
            budget -= count
        return rows

    def _completes(self, start: int, end: int) -> bool:
        """Whether computing the positions from `start` up to `end` completes a block."""
        return end // self._block_size > start // self._block_size

    def _catch_up(self, rows: list[_Row]) -> torch.Tensor:
        """Runs the draft over the rows' missing positions and returns their hidden states."""
        features = self._take_features(rows) if self.reads_features else None
        slots, starts, counts = (
            np.array(values, np.int64)
            for values in zip(*((row.slot, row.start, row.count) for row in rows), strict=True)
        )
        batch = self._rows(slots, starts, counts)
        if features is not None:
            batch = replace(batch, token_ids=self._buffers.token_ids_behind(batch), received=features)
        hidden = self._forward(batch)
        for row in rows:
            self._computed[row.slot] = end = row.start + row.count
            self._note_complete(row.slot, row.start, end)
        return hidden

    def _rows(
        self, slots: npt.NDArray[np.int64], computed: npt.NDArray[np.int64], new: npt.NDArray[np.int64]
    ) -> FlatBatch:
        """A batch for the draft, whose keys and values are cached whole, even if ranks share the target's."""
        return self._buffers.rows(slots, computed, new, part=self._draft.attention.shape.part, num_groups=1)

    def _note_complete(self, slot: int, start: int, end: int) -> None:
        """Marks the blocks that are now complete.

        A draft that reads features computes the last row of a block from the token after the block. A different token
        may follow in another sequence that finds the block: one inexact key of many, which costs a little acceptance.
        """
        first, last = start // self._block_size, end // self._block_size
        if last > first:
            self._complete[self._buffers.blocks(slot, first, last)] = True

    def _take_features(self, rows: list[_Row]) -> torch.Tensor:
        taken = []
        for row in rows:
            parts = self._held.pop(row.slot)
            held = parts[0] if len(parts) == 1 else torch.cat(parts)
            taken.append(held[: row.count])
            if row.count < len(held):
                self._held[row.slot] = [held[row.count :]]
        return self._draft.model.features_of(torch.cat(taken))

    def _go_on(self, rows: list[_Row], hidden: torch.Tensor) -> Guesses:
        """Drafts one token after the other. Their positions do not count as computed, because they may be wrong.

        Args:
            rows: sorted by the number of tokens wanted, most first.
            hidden: hidden states at the last known token of each row.
        """
        guesses = Guesses()
        token_ids: torch.Tensor | None = None
        for number in range(rows[0].wanted if rows else 0):
            if token_ids is not None:
                rows = [row for row in rows if row.wanted > number]
                at = np.array([row.known + number - 1 - self.reads_features for row in rows], np.int64)
                batch = self._rows(np.array([row.slot for row in rows]), at, np.ones_like(at))
                features = hidden[: len(rows)] if self.reads_features else None
                hidden = self._forward(replace(batch, token_ids=token_ids[: len(rows)], received=features))
            slots = [row.slot for row in rows]
            positions = [row.known + number for row in rows]
            token_ids = self._sampler.guess(self._draft.model.logits(hidden), slots, positions)
            guesses.rounds.append((slots, to_host(token_ids)))
        return guesses

    def _forward(self, batch: FlatBatch) -> torch.Tensor:
        """Hidden states; those of a replayed pass are valid only until the next pass."""
        hidden = self._recorded.run(batch) if self._recorded else None
        return self._prepare(batch.inputs)() if hidden is None else hidden

    def _prepare(self, inputs: Inputs) -> Forward:
        """Prepares a pass over these inputs."""
        prepared = self._draft.attention.prepare(inputs.metadata[0])
        caches = [LayerCache(cache, prepared) for cache in self.caches]

        def forward() -> torch.Tensor:
            self._draft.present.count = inputs.present
            return self._draft.model.forward(inputs.token_ids, inputs.positions, caches, inputs.received)

        return forward
