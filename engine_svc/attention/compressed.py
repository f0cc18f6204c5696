"""Attention to a window of tokens and to compressed entries, each of which stands for several tokens (DeepSeek V4).

A layer caches two things. Of each token that some window still sees, a *cell*: its key, which is its own value, and
the numbers that its entries will be made of. And of all tokens, one *entry* for every 4 or 128 of them. Cells and
entries have block tables of their own, so that blocks of tokens that no window sees can be used again: see
layer_groups.py. An entry is made in the step of the last token that it stands for, and belongs to that token's block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from engine_svc.attention.base import (
    AttentionBackend,
    AttentionMetadata,
    AttentionOptions,
    AttentionShape,
    Prepared,
)
from engine_svc.attention.chosen import weighted_scores
from engine_svc.attention.compressed_step import Back, CompressedStep, Compression

SCORE_BYTES = 64 << 20  # of scores or gathered vectors at a time


@dataclass(frozen=True)
class CachedSizes:
    """Numbers that layers cache."""

    cells: tuple[int, ...]  # of a token, for each layer: its key, and what entries will be made of
    entry: int  # of entries, the most of any layer, for each token that they stand for, rounded up


class Places(NamedTuple):
    """Where cells or entries are; also their index in a cache."""

    blocks: torch.Tensor  # int64
    offsets: torch.Tensor  # int64, in the blocks

    def of(self, rows: slice) -> Places:
        """The places of some rows."""
        return Places(self.blocks[rows], self.offsets[rows])


class Look(NamedTuple):
    """The cells or entries that several tokens look at."""

    places: Places  # [rows, count]
    absent: torch.Tensor  # bool [rows, count], where there is none

    def of(self, rows: slice) -> Look:
        """What some rows look at."""
        return Look(self.places.of(rows), self.absent[rows])


@dataclass(frozen=True)
class CellsPrepared(Prepared):
    """What layers share that have their cells in the same blocks."""

    step: CompressedStep
    new: Places  # [tokens]
    few: tuple[tuple[slice, Look], ...]  # as those of the step
    read: dict[Compression, Look]


@dataclass(frozen=True)
class EntriesPrepared(Prepared):
    """What layers share that have their entries in the same blocks."""

    step: CompressedStep
    new: dict[Compression, Places]  # of the entries that end in this batch
    # All entries that the step's parts with few tokens see, found by the first layer that needs them.
    seen: dict[tuple[Compression, int], Look] = field(default_factory=dict)


class SeenEntries(NamedTuple):
    """The entries that tokens attend to in a layer."""

    vectors: torch.Tensor  # [num_blocks, entries, head_dim], the layer's cache of them
    prepared: EntriesPrepared
    kind: Compression
    chosen: torch.Tensor | None  # int64 [tokens, most], -1 for none; None means all that a token sees


class CompressedBackend(AttentionBackend):
    """Caches cells and entries, and attends to both. In torch's operators, for any device."""

    name = "compressed"
    block_dimension = 0
    is_recordable = False  # the entries that a step makes, and those it attends to, are as many as there are

    def __init__(self, shape: AttentionShape, sizes: CachedSizes, kinds: Sequence[Compression], window: int) -> None:
        """
        Args:
            sizes: of all layers of the model; numbers after theirs stand for entries, see ModelFacts.entries_of.
            kinds: of all kinds of layers that have entries.
            window: tokens that queries see, themselves included.

        Raises:
            ValueError: entries do not fit blocks.
        """
        super().__init__(shape)
        self._sizes, self._kinds, self.window, self._num_layers = sizes, tuple(kinds), window, len(sizes.cells)
        self._cell = max(sizes.cells)
        self._step: CompressedStep | None = None  # the last one; groups of layers are prepared one after the other
        for kind in self._kinds:
            if max(kind.rate, shape.block_size) % min(kind.rate, shape.block_size):
                raise ValueError(f"--block-size {shape.block_size} is neither a multiple nor a part of {kind.rate}, "
                                 "the tokens that an entry of this model stands for")  # fmt: skip

    def allocate(self, num_blocks: int, num_layers: int) -> list[torch.Tensor]:
        """See AttentionBackend.allocate: [num_blocks, block_size, numbers of a cell] each, also used for entries."""
        size = num_blocks, self.shape.block_size, self._cell
        return [torch.zeros(size, dtype=self.shape.stored, device=self.shape.device) for _ in range(num_layers)]

    def layers_per_cache(self, layer: int) -> int:
        """See AttentionBackend.layers_per_cache."""
        return self._cell // self._size(layer)

    def _size(self, layer: int) -> int:
        """Numbers of a token in a layer's cells, or entries."""
        return self._sizes.cells[layer] if layer < self._num_layers else self._sizes.entry

    def caches_of(self, caches: Sequence[torch.Tensor], layers: Sequence[int]) -> list[torch.Tensor]:
        """See AttentionBackend.caches_of: cells [num_blocks, block_size, numbers], or entries [num_blocks, numbers]."""
        if not layers:
            return []
        count, size = self.layers_per_cache(layers[0]), self.shape.block_size * self._size(layers[0])
        places = (divmod(index, count) for index in range(len(layers)))
        found = [caches[cache].flatten(1)[:, place * size : (place + 1) * size] for cache, place in places]
        if layers[0] >= self._num_layers:
            return found
        return [cells.unflatten(1, (self.shape.block_size, -1)) for cells in found]

    def bytes_per_block(self, num_layers: int) -> int:
        """See AttentionBackend.bytes_per_block."""
        return num_layers * self.shape.block_size * self._cell * self.shape.stored.itemsize

    def entries_in(self, cache: torch.Tensor, kind: Compression, size: int) -> torch.Tensor:
        """A layer's cache of entries as [num_blocks, entries, size]; a view."""
        count = max(1, self.shape.block_size // kind.rate)
        return cache[:, : count * size].unflatten(1, (count, size))

    def prepare(self, metadata: AttentionMetadata) -> Prepared:
        """See AttentionBackend.prepare.

        Raises:
            TypeError: some layers have entries, for which `prepare_for` prepares otherwise than for cells.
        """
        if self._kinds:
            raise TypeError("cells and entries are prepared separately")
        return self.prepare_for((0,), metadata)

    def prepare_for(self, layers: Sequence[int], metadata: AttentionMetadata) -> Prepared:
        """See AttentionBackend.prepare_for."""
        step = self._step
        if step is None or not step.is_of(metadata):
            step = self._step = CompressedStep.of(metadata, self._kinds, self.window, self.shape.device)
        if layers[0] < self._num_layers:
            size = self.shape.block_size
            new = Places(metadata.slot_mapping // size, metadata.slot_mapping % size)
            few = tuple((rows, self.look(metadata, back)) for rows, back in step.few)
            return CellsPrepared(
                metadata, step, new, few, {kind: self.look(metadata, back) for kind, back in step.read.items()}
            )
        places = {kind: self._entries_of(self._places(metadata, *end), kind) for kind, end in step.ends.items()}
        return EntriesPrepared(metadata, step, places)

    def look(self, metadata: AttentionMetadata, back: Back) -> Look:
        """Finds the cells of tokens."""
        return Look(self._places(metadata, back.sequences, back.positions), back.absent)

    def _places(self, metadata: AttentionMetadata, sequences: torch.Tensor, positions: torch.Tensor) -> Places:
        size = self.shape.block_size
        return Places(metadata.block_table[sequences, positions // size].long(), positions % size)

    @staticmethod
    def _entries_of(tokens: Places, kind: Compression) -> Places:
        """The places of the entries whose last tokens would be at these places."""
        return Places(tokens.blocks, tokens.offsets // kind.rate)

    def places_of_entries(
        self, prepared: EntriesPrepared, sequences: torch.Tensor, entries: torch.Tensor, kind: Compression
    ) -> Places:
        """The places of entries, int64 of any shape, counted in their sequences."""
        last = (entries + 1) * kind.rate - 1
        return self._entries_of(self._places(prepared.metadata, sequences, last), kind)

    def look_at_all(self, prepared: EntriesPrepared, rows: slice, kind: Compression) -> Look:
        """Finds all entries that the rows of one of the step's parts with few tokens see."""
        key = kind, rows.start
        if key not in prepared.seen:
            numbers = torch.arange(prepared.step.longest[kind], device=self.shape.device)
            numbers = numbers.expand(rows.stop - rows.start, -1)
            absent = numbers >= prepared.step.counts[kind][rows, None]
            places = self.places_of_entries(prepared, prepared.step.sequences[rows, None], numbers, kind)
            prepared.seen[key] = Look(places, absent)
        return prepared.seen[key]

    def look_at_chosen(self, prepared: EntriesPrepared, rows: slice, kind: Compression, chosen: torch.Tensor) -> Look:
        """Finds the entries that rows attend to: int64 [tokens, most], -1 for none."""
        own = chosen[rows]
        sequences = prepared.step.sequences[rows, None]
        return Look(self.places_of_entries(prepared, sequences, own.clamp(min=0), kind), own < 0)

    def choose(
        self, query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, prepared: EntriesPrepared,
        kind: Compression, most: int,
    ) -> torch.Tensor:  # fmt: skip
        """The entries with the greatest scores, of those that each token sees.

        Args:
            query: [tokens, heads, key_dim], of the indexer.
            weights: float32 [tokens, heads]
            keys: [num_blocks, entries, key_dim], those of the layer's entries.

        Returns:
            int64 [tokens, most]; -1 for none.
        """
        step, (_, heads, dim) = prepared.step, query.shape
        found = torch.full((len(query), most), -1, dtype=torch.int64, device=query.device)

        def choose_among(known: torch.Tensor, rows: slice) -> None:
            scores = weighted_scores(query[rows], weights[rows], known)
            numbers = torch.arange(scores.shape[1], device=scores.device)
            scores.masked_fill_(numbers >= step.counts[kind][rows, None], -torch.inf)
            best, entries = scores.topk(min(most, scores.shape[1]), dim=1, sorted=False)
            found[rows, : entries.shape[1]] = entries.masked_fill_(best == -torch.inf, -1)

        for part, _ in step.few:
            numbers = torch.arange(step.longest[kind], device=query.device)
            for rows in parts_of(part, 4 * len(numbers) * (heads + 1 + dim)):
                of = step.sequences[rows, None]
                choose_among(keys[self.places_of_entries(prepared, of, numbers, kind)], rows)
        for sequence, (first, end, length) in step.many:
            known = keys[self.all_places(prepared, sequence, length // kind.rate, kind)]
            for rows in parts_of(slice(first, end), 4 * len(known) * (heads + 1)):
                choose_among(known, rows)
        return found

    def all_places(self, prepared: EntriesPrepared, sequence: int, count: int, kind: Compression) -> Places:
        """The places of a sequence's first `count` entries."""
        numbers = torch.arange(count, device=self.shape.device)
        return self.places_of_entries(prepared, torch.full_like(numbers, sequence), numbers, kind)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, prepared: Prepared,
        options: AttentionOptions, lse: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """
        Raises:
            TypeError: always; layers attend by compressed_sums.py.
        """
        raise TypeError("this backend attends to cells and entries alone")


def parts_of(rows: slice, row_bytes: int) -> Iterator[slice]:
    """Consecutive rows that together take no more than SCORE_BYTES."""
    size = max(1, SCORE_BYTES // max(row_bytes, 1))
    return (slice(first, min(first + size, rows.stop)) for first in range(rows.start, rows.stop, size))
