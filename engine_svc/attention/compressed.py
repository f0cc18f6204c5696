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

from engine_svc.attention.base import (
    AttentionBackend,
    AttentionMetadata,
    AttentionOptions,
    AttentionShape,
    Prepared,
)
from engine_svc.attention.chosen import weighted_scores
from engine_svc.transfer import to_device_together

_BYTES = 64 << 20  # of scores or gathered vectors at a time


@dataclass(frozen=True)
class EntryForm:
    """How entries are made; the same for all layers of a kind."""

    rate: int  # tokens that an entry stands for
    span: int  # tokens that it is made of, the last of which are those it stands for


@dataclass(frozen=True)
class CellSizes:
    """Numbers of what a layer caches, the most of any layer; some layers use less of it."""

    head_dim: int
    inputs: int  # of a token, for entries that are yet to be made
    entry: int  # of an entry, for each token that it stands for, rounded up


class Places(NamedTuple):
    """Where cells or entries are; also their index in a cache."""

    blocks: torch.Tensor  # int64
    offsets: torch.Tensor  # int64, in the blocks

    def of(self, rows: slice) -> Places:
        """The places of some rows."""
        return Places(self.blocks[rows], self.offsets[rows])


@dataclass(frozen=True)
class Closing:
    """The tokens of a batch that are the last ones of an entry."""

    first_positions: torch.Tensor  # int64 [entries], of the tokens that the entries stand for
    places: Places  # [entries], of the entries


@dataclass(frozen=True)
class CellsPrepared(Prepared):
    """What layers share that have their cells in the same blocks."""

    new: Places  # [tokens]
    seen: Places  # [tokens, window]
    unseen: torch.Tensor  # bool [tokens, window], where there is no token
    read: dict[EntryForm, Places]  # [closing tokens, span], what entries are made of
    absent: dict[EntryForm, torch.Tensor]  # bool, likewise, where there is no token


@dataclass(frozen=True)
class EntriesPrepared(Prepared):
    """What layers share that have their entries in the same blocks."""

    closing: dict[EntryForm, Closing]
    counts: dict[EntryForm, torch.Tensor]  # int64 [tokens], how many entries each token sees
    longest: dict[EntryForm, int]  # the greatest of them
    sequences: torch.Tensor  # int64 [tokens]
    spans: tuple[tuple[int, int, int], ...]  # (first token, end, length) of each sequence


class CompressedBackend(AttentionBackend):
    """Caches cells and entries, and attends to both. In torch's operators, for any device."""

    name = "compressed"
    block_dimension = 0
    is_recordable = False  # the entries that a step makes, and those it attends to, are as many as there are

    def __init__(
        self, shape: AttentionShape, sizes: CellSizes, forms: Sequence[EntryForm], window: int, num_layers: int
    ) -> None:
        """
        Args:
            forms: of all kinds of layers that have entries.
            window: tokens that queries see, themselves included.
            num_layers: of the whole model; greater numbers stand for entries, see ModelFacts.entries_of.

        Raises:
            ValueError: entries do not fit blocks.
        """
        super().__init__(shape)
        self._sizes, self._forms, self._window, self._num_layers = sizes, tuple(forms), window, num_layers
        self._cell = sizes.head_dim + sizes.inputs
        for form in self._forms:
            if max(form.rate, shape.block_size) % min(form.rate, shape.block_size):
                raise ValueError(f"--block-size {shape.block_size} is neither a multiple nor a part of {form.rate}, "
                                 "the tokens that an entry of this model stands for")  # fmt: skip

    def allocate(self, num_blocks: int, num_layers: int) -> list[torch.Tensor]:
        """See AttentionBackend.allocate: [num_blocks, block_size * numbers of a cell] each; see `caches_of`."""
        size = num_blocks, self.shape.block_size * self._cell
        return [torch.zeros(size, dtype=self.shape.stored, device=self.shape.device) for _ in range(num_layers)]

    def layers_per_cache(self, layer: int) -> int:
        """See AttentionBackend.layers_per_cache."""
        return 1 if layer < self._num_layers else self._cell // self._sizes.entry

    def caches_of(self, caches: Sequence[torch.Tensor], layers: Sequence[int]) -> list[torch.Tensor]:
        """See AttentionBackend.caches_of: cells [num_blocks, block_size, numbers], or entries [num_blocks, numbers]."""
        if not layers or layers[0] < self._num_layers:
            return [each.unflatten(1, (self.shape.block_size, -1)) for each in caches[: len(layers)]]
        count, size = self.layers_per_cache(layers[0]), self.shape.block_size * self._sizes.entry
        return [
            caches[index // count][:, index % count * size : (index % count + 1) * size] for index in range(len(layers))
        ]

    def bytes_per_block(self, num_layers: int) -> int:
        """See AttentionBackend.bytes_per_block."""
        return num_layers * self.shape.block_size * self._cell * self.shape.stored.itemsize

    def entries_in(self, cache: torch.Tensor, form: EntryForm, size: int) -> torch.Tensor:
        """A layer's cache of entries as [num_blocks, entries, size]; a view."""
        count = max(1, self.shape.block_size // form.rate)
        return cache[:, : count * size].unflatten(1, (count, size))

    def prepare(self, metadata: AttentionMetadata) -> Prepared:
        """
        Raises:
            TypeError: always, because it depends on the layers; see `prepare_for`.
        """
        raise TypeError("cells and entries are prepared separately")

    def prepare_for(self, layers: Sequence[int], metadata: AttentionMetadata) -> Prepared:
        """See AttentionBackend.prepare_for."""
        query_lens, seq_lens = (np.array(lens, np.int64) for lens in (metadata.query_lens_host, metadata.seq_lens_host))
        sequences = np.repeat(np.arange(len(query_lens)), query_lens)
        ends = np.cumsum(query_lens)
        positions = np.arange(len(sequences)) + np.repeat(seq_lens - ends, query_lens)
        if layers[0] < self._num_layers:
            return self._prepare_cells(metadata, sequences, positions)
        spans = tuple(
            (int(end - count), int(end), int(length))
            for end, count, length in zip(ends, query_lens, seq_lens, strict=True)
        )
        return self._prepare_entries(metadata, sequences, positions, spans)

    def _prepare_cells(
        self, metadata: AttentionMetadata, sequences: npt.NDArray[np.int64], positions: npt.NDArray[np.int64]
    ) -> CellsPrepared:
        closing = {form: np.flatnonzero((positions + 1) % form.rate == 0) for form in self._forms}
        looks = [(sequences, positions, self._window)]
        looks += [(sequences[rows], positions[rows], form.span) for form, rows in closing.items()]
        found = [self._looking_back(metadata, *look) for look in looks]
        (seen, unseen), *reads = found
        size = self.shape.block_size
        new = Places(metadata.slot_mapping // size, metadata.slot_mapping % size)
        return CellsPrepared(
            metadata, new, seen, unseen, {form: places for form, (places, _) in zip(closing, reads, strict=True)},
            {form: absent for form, (_, absent) in zip(closing, reads, strict=True)},
        )  # fmt: skip

    def _looking_back(
        self,
        metadata: AttentionMetadata,
        sequences: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        count: int,
    ) -> tuple[Places, torch.Tensor]:
        """The last `count` tokens up to each position: [positions, count], and where there are none."""
        device = self.shape.device
        of, at = to_device_together([sequences, positions], device)
        back = at[:, None] - torch.arange(count - 1, -1, -1, device=device)
        absent = back < 0
        back = back.clamp_(min=0)
        return self._places(metadata, of[:, None], back), absent

    def _places(self, metadata: AttentionMetadata, sequences: torch.Tensor, positions: torch.Tensor) -> Places:
        size = self.shape.block_size
        return Places(metadata.block_table[sequences, positions // size].long(), positions % size)

    def _prepare_entries(
        self, metadata: AttentionMetadata, sequences: npt.NDArray[np.int64], positions: npt.NDArray[np.int64],
        spans: tuple[tuple[int, int, int], ...],
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
        """The places of entries, int64 of any shape, counted in their sequences; of the first one for -1."""
        last = (entries.clamp(min=0) + 1) * form.rate - 1
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
            int64 [tokens, at most `most`]; -1 for none.
        """
        longest, heads = prepared.longest[form], query.shape[1]
        if longest <= most:
            return self.all_entries(prepared, form)
        found = []
        for sequence, (first, end, length) in enumerate(prepared.spans):
            count = length // form.rate
            numbers = torch.arange(count, device=query.device)
            known = keys[self.places_of_entries(prepared, torch.full_like(numbers, sequence), numbers, form)]
            size = max(1, _BYTES // (4 * (heads + 1) * max(count, 1)))
            for begin in range(first, end, size):
                part = slice(begin, min(begin + size, end))
                scores = weighted_scores(query[part], weights[part], known)
                scores.masked_fill_(numbers >= prepared.counts[form][part, None], -torch.inf)
                best, entries = scores.topk(min(most, count), dim=1, sorted=False)
                entries.masked_fill_(best == -torch.inf, -1)
                found.append(torch.nn.functional.pad(entries, (0, most - entries.shape[1]), value=-1))
        return torch.cat(found)

    def all_entries(self, prepared: EntriesPrepared, form: EntryForm) -> torch.Tensor:
        """All entries that each token sees: int64 [tokens, most of any]; -1 for none."""
        numbers = torch.arange(prepared.longest[form], device=self.shape.device)
        counts = prepared.counts[form][:, None]
        return torch.where(numbers < counts, numbers, -1)

    def attend_to(
        self, query: torch.Tensor, cells: torch.Tensor, prepared: CellsPrepared, options: AttentionOptions,
        entries: tuple[torch.Tensor, Places, torch.Tensor] | None,
    ) -> torch.Tensor:  # fmt: skip
        """Attends to the window and to entries, all of which are cached: [tokens, heads, head_dim] → the same shape.

        Args:
            cells: the layer's cache of them.
            options: of which the scale and the sinks are used.
            entries: a cache of vectors [num_blocks, entries, head_dim], the places of those that each token attends to
                [tokens, count], and which of these are none (bool).
        """
        output, dim, sinks = torch.empty_like(query), query.shape[2], options.sinks
        wide = torch.promote_types(query.dtype, torch.float32)
        count = self._window + (0 if entries is None else entries[2].shape[1])
        size = max(1, _BYTES // (count * max(dim * query.dtype.itemsize, query.shape[1] * wide.itemsize)))
        keys = cells[..., :dim]
        for first in range(0, len(query), size):
            part = slice(first, first + size)
            vectors, hidden = keys[prepared.seen.of(part)], prepared.unseen[part]
            if entries is not None:
                cache, places, none = entries
                vectors = torch.cat((vectors, cache[places.of(part)]), dim=1)
                hidden = torch.cat((hidden, none[part]), dim=1)
            vectors = vectors.masked_fill(hidden[:, :, None], 0)  # what is not written may be infinite or NaN
            scores = (query[part] @ vectors.transpose(1, 2)).to(wide) * options.scale
            scores = scores.masked_fill(hidden[:, None], -torch.inf)
            if sinks is not None:
                scores = torch.cat((scores, sinks.to(wide)[None, :, None].expand(len(scores), -1, 1)), dim=2)
            shares = scores.softmax(dim=2)[..., :count].to(query.dtype)
            output[part] = shares @ vectors
        return output

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, prepared: Prepared,
        options: AttentionOptions, lse: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """
        Raises:
            TypeError: always; layers call `attend_to`.
        """
        raise TypeError("this backend attends to cells and entries alone")
