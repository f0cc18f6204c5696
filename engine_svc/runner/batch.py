"""Persistent per-slot buffers, and the flat batch of a step, built from them without a loop over tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.attention.base import AttentionMetadata, OutputRows
from engine_svc.attention.context import ContextPart
from engine_svc.layers.embedding import EmbeddedRows
from engine_svc.memory import zeros_when_touched
from engine_svc.plan import NewSequence, ScheduledSequence, StepPlan
from engine_svc.recurrence.base import StateMetadata
from engine_svc.runner.given_rows import put_together
from engine_svc.runner.image_rows import ImageRows
from engine_svc.runner.prompt_embeds import PromptEmbeddings
from engine_svc.runner.states import SlotsOfSequences, StateSlots
from engine_svc.sampling.rows import NO_DRAFT, SampledRows
from engine_svc.transfer import to_device, to_device_together


class Inputs(NamedTuple):
    """What a forward pass reads."""

    token_ids: torch.Tensor
    positions: torch.Tensor
    metadata: list[AttentionMetadata]  # one for each group of layers
    states: StateMetadata
    received: torch.Tensor | None = None  # output of the previous pipeline stage, or the features that a draft reads
    present: torch.Tensor | None = None  # int32 [1], number of real (not padding) rows; None means all rows
    outputs: OutputRows | None = None  # None means that all rows are needed


class HostInputs(NamedTuple):
    """A step's inputs on the host."""

    token_places: npt.NDArray[np.int64]  # [tokens], indices into the flattened table of all slots' tokens
    positions: npt.NDArray[np.int64]  # [tokens], for rotation: places in the sequences but after images, see ImageRows
    query_start: npt.NDArray[np.int32]  # [sequences + 1]
    seq_lens: npt.NDArray[np.int32]  # [sequences]
    state_slots: npt.NDArray[np.int64]  # [sequences]
    state_targets: npt.NDArray[np.int64]  # [tokens], see StateSlots
    is_fresh: npt.NDArray[np.bool_]  # [sequences], whether the sequence has no states yet
    slot_mappings: list[npt.NDArray[np.int64]]  # [tokens] for each group of layers
    block_tables: list[npt.NDArray[np.int32]]  # [sequences, blocks of the longest sequence] for each group


@dataclass(frozen=True)
class FlatBatch:
    """One step's inputs."""

    host: HostInputs
    known: torch.Tensor  # int64, the flattened table of all slots' tokens, on the device
    slots: list[int]  # of each sequence
    query_start: list[int]  # first row of each sequence, followed by the total number of rows
    query_lens: list[int]  # number of rows of each sequence
    computed: list[int]  # number of computed tokens of each sequence before the step
    lengths: list[int]  # and after the step
    embedded: EmbeddedRows | None  # rows whose embeddings came with the prompt
    received: torch.Tensor | None = None  # [tokens, …], see Inputs.received; None in the first stage
    halves: tuple[FlatBatch, FlatBatch] | None = None  # the two halves it runs as; None means it runs as a whole
    token_ids: torch.Tensor | None = None  # int64 [tokens] on the device; if given, used instead of `known`
    output_lens: list[int] | None = None  # how many of each sequence's last rows are needed; None means all

    @property
    def num_tokens(self) -> int:
        """New tokens of all sequences."""
        return self.query_start[-1]

    @property
    def is_divisible(self) -> bool:
        """Whether it may be cut anywhere: not if tokens of images attend in both directions, or states have targets."""
        has_images = self.embedded is not None and self.embedded.both_ways is not None
        return not has_images and not len(self.host.state_targets)

    @cached_property
    def output_start(self) -> npt.NDArray[np.int32]:
        """int32 [sequences + 1]: prefix sums of each sequence's number of output rows."""
        lens = self.query_lens if self.output_lens is None else self.output_lens
        return np.concatenate(([0], np.cumsum(lens))).astype(np.int32)

    @property
    def num_outputs(self) -> int:
        """Number of output rows of all sequences."""
        return int(self.output_start[-1])

    @cached_property
    def output_rows(self) -> npt.NDArray[np.int64]:
        """int64 [outputs]: the indices of the output rows in the batch."""
        start = self.output_start
        return np.arange(start[-1]) + np.repeat(np.array(self.query_start[1:]) - start[1:], np.diff(start))

    def outputs_of(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states of the output rows.

        Args:
            hidden: hidden states of all rows, or of the output rows already.
        """
        return hidden if len(hidden) == self.num_outputs else hidden[to_device(self.output_rows, hidden.device)]

    @cached_property
    def inputs(self) -> Inputs:
        """The inputs on the device, moved there in one copy."""
        host = self.host
        shared = host[:-2]
        needed = self.output_rows, self.output_start
        *moved, output_rows, output_start = to_device_together(
            [*shared, *host.slot_mappings, *host.block_tables, *needed], self.known.device
        )
        places, positions, starts, seq_lens, slots, targets, is_fresh = moved[: len(shared)]
        tables = moved[-len(host.block_tables) :]
        metadata = [
            AttentionMetadata(
                query_start_loc=starts, seq_lens=seq_lens, block_table=table, slot_mapping=slot_mapping,
                query_lens_host=self.query_lens, seq_lens_host=self.lengths,
            )
            for slot_mapping, table in zip(moved[len(shared) : -len(tables)], tables, strict=True)
        ]  # fmt: skip
        token_ids = self.known[places] if self.token_ids is None else self.token_ids
        states = StateMetadata(starts, slots, is_fresh, self.query_lens, targets if len(targets) else None)
        outputs = None if self.output_lens is None else OutputRows(output_rows, output_start, self.output_lens)
        return Inputs(token_ids, positions, metadata, states, self.received, outputs=outputs)

    def sampled(self, plan: StepPlan) -> tuple[list[int], SampledRows]:
        """The indices of the output rows that are sampled from, and the description of them for the sampler."""
        rows: list[int] = []
        slots: list[int] = []
        num_tokens: list[int] = []
        for index, sequence in enumerate(plan.scheduled):
            count, end = sequence.num_sampled_positions, int(self.output_start[index + 1])
            rows += range(end - count, end)
            slots += [self.slots[index]] * count
            num_tokens += range(self.lengths[index] - count + 1, self.lengths[index] + 1)
        if not plan.has_drafts:
            return rows, SampledRows(slots, num_tokens)
        sampling = [sequence for sequence in plan.scheduled if sequence.num_sampled_positions]
        drafts = [draft for sequence in sampling for draft in (*sequence.draft_token_ids, NO_DRAFT)]
        offsets = [offset for sequence in sampling for offset in range(sequence.num_sampled_positions)]
        return rows, SampledRows(slots, num_tokens, drafts, offsets)


class SlotBuffers:
    """The runner's state of each slot: tokens, prompt embeddings, and one block table for each group of layers."""

    def __init__(
        self,
        max_num_seqs: int,
        max_model_len: int,
        block_size: int,
        num_groups: int,
        device: torch.device,
        dtype: torch.dtype,
        part: ContextPart = ContextPart(),
        images: ImageRows | None = None,
        states_each: int = 1,
    ) -> None:
        """
        Args:
            block_size: tokens of a sequence in a block, over all ranks that share its context.
            part: the part of each sequence that this rank caches.
            images: the images of the slots; None for models that read text only.
            states_each: slots for the states of each sequence.
        """
        self._block_size = block_size
        self._part = part
        self._device = device
        # One column more, because the last token sampled at full length is written but never read. On the device, so
        # that a step can follow another one whose tokens the host has not seen yet.
        size = max_num_seqs, max_model_len + 1
        if device.type == "cpu":  # hundreds of megabytes for a model with long contexts, most of them never used
            self.token_ids = zeros_when_touched(size, torch.int64, in_huge_pages=False)
        else:
            self.token_ids = torch.zeros(size, dtype=torch.int64, device=device)
        self._blocks = np.zeros((num_groups, max_num_seqs, -(-max_model_len // block_size)), np.int32)
        self._num_blocks = np.zeros(max_num_seqs, np.int64)
        self._prompt_embeds = PromptEmbeddings(dtype)
        self.images = images or ImageRows(None, device)
        self.state_slots = SlotsOfSequences(max_num_seqs, states_each)

    def add(self, sequences: Sequence[NewSequence]) -> dict[int, str]:
        """Gives slots to sequences; their tokens are moved to the device in one copy.

        Returns:
            slot → why its sequence fails, for those with images that do not fit their tokens.

        Raises:
            ValueError: a sequence has more tokens than fit into a slot.
        """
        failed: dict[int, str] = {}
        if not sequences:
            return failed
        width = self.token_ids.shape[1]
        if (longest := max(len(each.token_ids) for each in sequences)) > width:
            raise ValueError(f"a sequence of {longest} tokens does not fit into a slot of {width}")
        places = [np.arange(len(each.token_ids)) + each.slot * width for each in sequences]
        token_ids = np.fromiter(itertools.chain.from_iterable(each.token_ids for each in sequences), np.int64)
        at, known = to_device_together((np.concatenate(places), token_ids), self._device)
        self.token_ids.view(-1)[at] = known
        for each in sequences:
            self._prompt_embeds.add(each)
            if fault := self.images.add(each):
                failed[each.slot] = fault
            self.state_slots.begin(each.slot)
            self._num_blocks[each.slot] = 0
            self._append_blocks(each.slot, each.block_ids)
        return failed

    def _append_blocks(self, slot: int, block_ids: list[list[int]]) -> None:
        start = int(self._num_blocks[slot])
        end = start + len(block_ids[0])
        self._blocks[:, slot, start:end] = block_ids
        self._num_blocks[slot] = end

    def record(self, rows: SampledRows, token_ids: torch.Tensor) -> None:
        """Writes sampled tokens, int64 [rows] on the device, to their positions.

        Tokens after a wrong draft are meaningless: they are overwritten before they are read.
        """
        width = self.token_ids.shape[1]
        places = [slot * width + position for slot, position in zip(rows.slots, rows.num_tokens, strict=True)]
        self.token_ids.view(-1)[to_device(places, self._device)] = token_ids

    def _put_drafts(self, scheduled: Sequence[ScheduledSequence]) -> None:
        """Writes drafted tokens after the known ones."""
        drafting = [sequence for sequence in scheduled if sequence.draft_token_ids]
        if not drafting:
            return
        counts = [len(sequence.draft_token_ids) for sequence in drafting]
        ends = [sequence.num_computed_tokens + sequence.num_new_tokens for sequence in drafting]
        slots = np.repeat([sequence.slot for sequence in drafting], counts)
        positions = np.concatenate([np.arange(end - count, end) for end, count in zip(ends, counts, strict=True)])
        token_ids = np.concatenate([sequence.draft_token_ids for sequence in drafting])
        at, to, drafts = to_device_together((slots, positions, token_ids), self._device)
        self.token_ids[at, to] = drafts

    def flatten(self, plan: StepPlan) -> FlatBatch:
        """Builds the batch of a step, after appending the plan's new blocks and drafts."""
        self._put_drafts(plan.scheduled)
        for sequence in plan.scheduled:
            if sequence.new_block_ids:
                self._append_blocks(sequence.slot, sequence.new_block_ids)
        slots = np.array([sequence.slot for sequence in plan.scheduled])
        computed = np.array([sequence.num_computed_tokens for sequence in plan.scheduled])
        new = np.array([sequence.num_new_tokens for sequence in plan.scheduled])
        return self.rows(
            slots, computed, new,
            put_together([*self._prompt_embeds.rows(plan.scheduled), *self.images.rows(plan.scheduled)], self._device),
            states=self.state_slots.step(slots, computed, new, plan.scheduled),
        )  # fmt: skip

    def rows(
        self,
        slots: npt.NDArray[np.int64],
        computed: npt.NDArray[np.int64],
        new: npt.NDArray[np.int64],
        embedded: EmbeddedRows | None = None,
        part: ContextPart | None = None,
        num_groups: int | None = None,
        states: StateSlots | None = None,
    ) -> FlatBatch:
        """Builds a batch of `new[i]` tokens of the sequence in `slots[i]`, after its `computed[i]` computed tokens.

        Args:
            part: the part of each sequence that is cached; None means this rank's.
            num_groups: how many groups of layers to include, counted from the first; None means all.
            states: where the sequences' states are; None means in `slots`.
        """
        states = states or StateSlots(slots, slots[:0])
        part, groups = part or self._part, self._blocks[:num_groups]
        start = np.concatenate(([0], np.cumsum(new)))
        rows = np.repeat(slots, new)
        positions = np.arange(start[-1]) + np.repeat(computed - start[:-1], new)
        lengths = computed + new
        width = -(-int(lengths.max()) // self._block_size)
        at_block = positions // self._block_size
        places = [_own((blocks[rows, at_block] - at_block) * self._block_size + positions, part) for blocks in groups]
        turned = self.images.turned(positions, slots.tolist(), start.tolist())
        host = HostInputs(
            rows * self.token_ids.shape[1] + positions, turned, start.astype(np.int32), lengths.astype(np.int32),
            *states, computed == 0, places, [blocks[slots, :width] for blocks in groups],
        )  # fmt: skip
        return FlatBatch(
            host, self.token_ids.view(-1), slots.tolist(), start.tolist(), new.tolist(), computed.tolist(),
            lengths.tolist(), embedded,
        )  # fmt: skip

    def cut(self, batch: FlatBatch) -> FlatBatch:
        """The batch with its two halves set; the first gets the extra token if their number is odd.

        A sequence may be in both halves; in the second one, its tokens in the first count as computed.
        """
        start, computed = np.array(batch.query_start), np.array(batch.computed)
        slots, middle = np.array(batch.slots), -(-int(start[-1]) // 2)

        def part(first: int, last: int) -> FlatBatch:
            begins, ends = start[:-1].clip(first, last), start[1:].clip(first, last)
            in_it = ends > begins
            embedded = None if batch.embedded is None else batch.embedded.part(first, last)
            found = self.rows(slots[in_it], (computed + begins - start[:-1])[in_it], (ends - begins)[in_it], embedded)
            return replace(found, received=None if batch.received is None else batch.received[first:last])

        return replace(batch, halves=(part(0, middle), part(middle, int(start[-1]))))

    def token_ids_behind(self, batch: FlatBatch) -> torch.Tensor:
        """int64 [tokens]: for each row of a batch, the token at the next position."""
        return batch.known[to_device(batch.host.token_places + 1, self._device)]

    def capacity(self, slot: int) -> int:
        """Number of tokens that the slot's blocks have room for."""
        return int(self._num_blocks[slot]) * self._block_size

    def places(self, slot: int, count: int) -> npt.NDArray[np.int64]:
        """Places in the KV cache of the slot's first tokens, in the first group of layers."""
        blocks = self.blocks(slot, 0, -(-count // self._block_size)).astype(np.int64)
        return (blocks[:, None] * self._block_size + np.arange(self._block_size)).ravel()[:count]

    def blocks(self, slot: int, first: int, last: int) -> npt.NDArray[np.int32]:
        """The slot's blocks from index `first` up to but not including `last`, of the first group of layers."""
        return self._blocks[0, slot, first:last]


def _own(places: npt.NDArray[np.int64], part: ContextPart) -> npt.NDArray[np.int64]:
    """Maps slots in the blocks of all ranks that share a context to slots of this rank; -1 for other ranks' slots."""
    return places if part.size == 1 else np.where(places % part.size == part.rank, places // part.size, -1)
