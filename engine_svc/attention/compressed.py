"""Attention to a window of tokens and to compressed entries, each of which stands for several tokens (DeepSeek V4).

A layer caches two things. Of each token that some window still sees, a *cell*: its key, which is its own value, and
the numbers that its entries will be made of. And of all tokens, one *entry* for every 4 or 128 of them. Cells and
entries have block tables of their own, so that blocks of tokens that no window sees can be used again: see
layer_groups.py. An entry is made in the step of the last token that it stands for, and belongs to that token's block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from engine_svc.attention.base import (
    AttentionBackend,
    AttentionMetadata,
    AttentionOptions,
    AttentionShape,
    Prepared,
)
from engine_svc.attention.chosen import weighted_scores
from engine_svc.transfer import to_device_together

SCORE_BYTES = 64 << 20  # of scores or gathered vectors at a time
_FEW = 8  # new tokens of a sequence, up to which each looks up by itself what it sees


@dataclass(frozen=True)
class EntryForm:
    """How entries are made; the same for all layers of a kind."""

    rate: int  # tokens that an entry stands for
    span: int  # tokens that it is made of, the last of which are those it stands for


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
    """The last tokens up to each of several ones, themselves included."""

    places: Places  # [rows, count], of their cells; of the last one for those that there are not
    absent: torch.Tensor  # bool [rows, count], where there is no token

    def of(self, rows: slice) -> Look:
        """What some rows look at."""
        return Look(self.places.of(rows), self.absent[rows])


class Span(NamedTuple):
    """A sequence's tokens in a batch, and its length with them."""

    first: int
    end: int
    length: int


@dataclass(frozen=True)
class Closing:
    """The tokens of a batch that are the last ones of an entry."""

    first_positions: torch.Tensor  # int64 [entries], of the tokens that the entries stand for
    places: Places  # [entries], of the entries


@dataclass(frozen=True)
class CellsPrepared(Prepared):
    """What layers share that have their cells in the same blocks."""

    new: Places  # [tokens]
    few: tuple[tuple[slice, Look], ...]  # consecutive tokens of sequences with few new ones each, and their windows
    many: tuple[tuple[int, Span], ...]  # the other sequences
    read: dict[EntryForm, Look]  # of closing tokens, what entries are made of


@dataclass(frozen=True)
class EntriesPrepared(Prepared):
    """What layers share that have their entries in the same blocks."""

    closing: dict[EntryForm, Closing]
    counts: dict[EntryForm, torch.Tensor]  # int64 [tokens], how many entries each token sees
    longest: dict[EntryForm, int]  # the greatest of them
    sequences: torch.Tensor  # int64 [tokens]
    spans: tuple[Span, ...]  # of each sequence


class SeenEntries(NamedTuple):
    """The entries that tokens attend to in a layer."""

    vectors: torch.Tensor  # [num_blocks, entries, head_dim], the layer's cache of them
    prepared: EntriesPrepared
    form: EntryForm
    chosen: torch.Tensor | None  # int64 [tokens, most], -1 for none; None means all that a token sees


class CompressedBackend(AttentionBackend):
    """Caches cells and entries, and attends to both. In torch's operators, for any device."""

    name = "compressed"
    block_dimension = 0
    is_recordable = False  # the entries that a step makes, and those it attends to, are as many as there are

    def __init__(self, shape: AttentionShape, sizes: CachedSizes, forms: Sequence[EntryForm], window: int) -> None:
        """
        Args:
            sizes: of all layers of the model; numbers after theirs stand for entries, see ModelFacts.entries_of.
            forms: of all kinds of layers that have entries.
            window: tokens that queries see, themselves included.

        Raises:
            ValueError: entries do not fit blocks.
        """
        super().__init__(shape)
        self._sizes, self._forms, self.window, self._num_layers = sizes, tuple(forms), window, len(sizes.cells)
        self._cell = max(sizes.cells)
        for form in self._forms:
            if max(form.rate, shape.block_size) % min(form.rate, shape.block_size):
                raise ValueError(f"--block-size {shape.block_size} is neither a multiple nor a part of {form.rate}, "
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

    def entries_in(self, cache: torch.Tensor, form: EntryForm, size: int) -> torch.Tensor:
        """A layer's cache of entries as [num_blocks, entries, size]; a view."""
        count = max(1, self.shape.block_size // form.rate)
        return cache[:, : count * size].unflatten(1, (count, size))

    def prepare(self, metadata: AttentionMetadata) -> Prepared:
        """See AttentionBackend.prepare.

        Raises:
            TypeError: some layers have entries, for which `prepare_for` prepares otherwise than for cells.
        """
        if self._forms:
            raise TypeError("cells and entries are prepared separately")
        return self.prepare_for((0,), metadata)

    def prepare_for(self, layers: Sequence[int], metadata: AttentionMetadata) -> Prepared:
        """See AttentionBackend.prepare_for."""
        query_lens, seq_lens = (np.array(lens, np.int64) for lens in (metadata.query_lens_host, metadata.seq_lens_host))
        sequences = np.repeat(np.arange(len(query_lens)), query_lens)
        ends = np.cumsum(query_lens)
        positions = np.arange(len(sequences)) + np.repeat(seq_lens - ends, query_lens)
        spans = tuple(map(Span, (ends - query_lens).tolist(), ends.tolist(), seq_lens.tolist()))
        prepare = self._prepare_cells if layers[0] < self._num_layers else self._prepare_entries
        return prepare(metadata, sequences, positions, spans)

    def _prepare_cells(
        self, metadata: AttentionMetadata, sequences: npt.NDArray[np.int64], positions: npt.NDArray[np.int64],
        spans: tuple[Span, ...],
    ) -> CellsPrepared:  # fmt: skip
        parts, many = _divided(spans)
        closing = [np.flatnonzero((positions + 1) % form.rate == 0) for form in self._forms]
        few = tuple((part, self.look(metadata, sequences[part], positions[part], self.window)) for part in parts)
        read = {
            form: self.look(metadata, sequences[rows], positions[rows], form.span)
            for form, rows in zip(self._forms, closing, strict=True)
        }
        size = self.shape.block_size
        new = Places(metadata.slot_mapping // size, metadata.slot_mapping % size)
        return CellsPrepared(metadata, new, few, many, read)

    def look(
        self, metadata: AttentionMetadata, sequences: npt.NDArray[np.int64], positions: npt.NDArray[np.int64],
        count: int,
    ) -> Look:  # fmt: skip
        """What tokens at these positions of sequences see if they look back at so many."""
        of, at = to_device_together([sequences, positions], self.shape.device)
        back = at[:, None] - torch.arange(count - 1, -1, -1, device=self.shape.device)
        absent = back < 0
        return Look(self._places(metadata, of[:, None], torch.where(absent, at[:, None], back)), absent)

    def _places(self, metadata: AttentionMetadata, sequences: torch.Tensor, positions: torch.Tensor) -> Places:
        size = self.shape.block_size
        return Places(metadata.block_table[sequences, positions // size].long(), positions % size)

    def _prepare_entries(
        self, metadata: AttentionMetadata, sequences: npt.NDArray[np.int64], positions: npt.NDArray[np.int64],
        spans: tuple[Span, ...],
    ) -> EntriesPrepared:  # fmt: skip
        device = self.shape.device
        of, at = to_device_together([sequences, positions], device)
        closing, counts, longest = {}, {}, {}
        for form in self._forms:
            rows = np.flatnonzero((positions + 1) % form.rate == 0)
            whose, lasts = to_device_together([sequences[rows], positions[rows]], device)
            blocks, offsets = self._places(metadata, whose, lasts)
            closing[form] = Closing(lasts + 1 - form.rate, Places(blocks, offsets // form.rate))
            counts[form] = (at + 1) // form.rate
            longest[form] = int((positions.max(initial=-1) + 1) // form.rate)
        return EntriesPrepared(metadata, closing, counts, longest, of, spans)

    def places_of_entries(
        self, prepared: EntriesPrepared, sequences: torch.Tensor, entries: torch.Tensor, form: EntryForm
    ) -> Places:
        """The places of entries, int64 of any shape, counted in their sequences."""
        last = (entries + 1) * form.rate - 1
        blocks, offsets = self._places(prepared.metadata, sequences, last)
        return Places(blocks, offsets // form.rate)

    def choose(
        self, query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, prepared: EntriesPrepared,
        form: EntryForm, most: int,
    ) -> torch.Tensor:  # fmt: skip
        """The entries with the greatest scores, of those that each token sees.

        Args:
            query: [tokens, heads, key_dim], of the indexer.
            weights: float32 [tokens, heads]
            keys: [num_blocks, entries, key_dim], those of the layer's entries.

        Returns:
            int64 [tokens, most]; -1 for none.
        """
        heads, found = query.shape[1], []
        for sequence, (first, end, length) in enumerate(prepared.spans):
            count = length // form.rate
            known = keys[self.all_places(prepared, sequence, count, form)]
            numbers = torch.arange(count, device=query.device)
            size = max(1, SCORE_BYTES // (4 * (heads + 1) * max(count, 1)))
            for begin in range(first, end, size):
                part = slice(begin, min(begin + size, end))
                scores = weighted_scores(query[part], weights[part], known)
                scores.masked_fill_(numbers >= prepared.counts[form][part, None], -torch.inf)
                best, entries = scores.topk(min(most, count), dim=1, sorted=False)
                entries.masked_fill_(best == -torch.inf, -1)
                found.append(F.pad(entries, (0, most - entries.shape[1]), value=-1))
        return torch.cat(found)

    def all_places(self, prepared: EntriesPrepared, sequence: int, count: int, form: EntryForm) -> Places:
        """The places of a sequence's first `count` entries."""
        numbers = torch.arange(count, device=self.shape.device)
        return self.places_of_entries(prepared, torch.full_like(numbers, sequence), numbers, form)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, prepared: Prepared,
        options: AttentionOptions, lse: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """
        Raises:
            TypeError: always; layers attend by compressed_sums.py.
        """
        raise TypeError("this backend attends to cells and entries alone")


def _divided(spans: Sequence[Span]) -> tuple[list[slice], tuple[tuple[int, Span], ...]]:
    """Tokens of sequences with few new ones each, in as few parts as possible; and the other sequences."""
    few: list[slice] = []
    many = tuple(each for each in enumerate(spans) if each[1].end - each[1].first > _FEW)
    for first, end, _ in (span for span in spans if span.end - span.first <= _FEW):
        start = few.pop().start if few and few[-1].stop == first else first
        few.append(slice(start, end))
    return few, many
