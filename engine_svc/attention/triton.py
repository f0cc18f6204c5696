"""The GPU backend: separate Triton kernels for prefill and decode over the paged KV cache.

For identical rounding in batch-invariant mode, prefill attends in parts like decode, and decode uses prefill's tiles.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from engine_svc.attention.base import (
    AttentionBackend,
    AttentionMetadata,
    AttentionOptions,
    AttentionShape,
    Others,
    Prepared,
)
from engine_svc.attention.chosen import CHOICE_BYTES
from engine_svc.attention.expansion import MIN_QUERIES, TritonExpansion, round_bytes, rounds_of
from engine_svc.attention.rotation import Rotation
from engine_svc.kernels.attend import block_descriptor
from engine_svc.kernels.cache_write import write_cache
from engine_svc.kernels.paged_decode import PART, most_parts, paged_decode
from engine_svc.kernels.paged_prefill import paged_prefill
from engine_svc.kernels.rotary import Slots, rotate
from engine_svc.kernels.tiles import (
    Tiles,
    column_tiles,
    decode_tiles,
    expansion_tiles,
    multiprocessors,
    prefill_tiles,
)
from engine_svc.native.library import Kernels
from engine_svc.transfer import to_device, to_device_together
from quire.errors import StartupError

_PARTIAL_BYTES = 256 << 20  # room for the results of parts of contexts, before they are combined
# Most new tokens of a sequence for which its keys are split among programs as in decode: draft tokens being verified,
# or the rest of a prompt.
_MOST_QUERIES = 8
# Prompts with more new tokens are also split, into parts of 1024 keys, if their programs would still be running when
# all others have ended, and the context is longer than 4096 positions: each token needs room for its parts' results.
_LONG_PART, _LONG_CONTEXT = 1024, 4096
# Scores of a layer from which on a step with prompts had better expand them than be replayed from a graph: that many
# take 0.9 ms less on an H200, and launching a layer takes the host 0.75.
_MANY_SCORES = 100_000_000
# Decode programs per multiprocessor: at most as many as fit into its shared memory.
_PROGRAMS_EACH = 4


class _InParts(NamedTuple):
    """Sequences whose keys are split among programs."""

    sequences: torch.Tensor  # int32, their indices in the batch
    positions: int  # most positions of all of them together
    queries: int  # most new tokens of one of them
    tiles: Tiles
    part_keys: int


@dataclass(frozen=True)
class _Prepared(Prepared):
    in_parts: list[_InParts]
    tile_sequences: torch.Tensor  # int32 [tiles of the sequences that are not in parts], the tile's sequence
    tile_starts: torch.Tensor  # int32 [tiles], first row of the tile within its sequence: see paged_prefill


class TritonBackend(AttentionBackend):
    """Attention by Triton kernels; the cache of a layer is [planes, num_blocks, block_size, num_kv_heads, head_dim]."""

    name = "triton"
    query_lens = (2, 1)

    def __init__(self, shape: AttentionShape, kernels: Kernels | None = None) -> None:
        """
        Raises:
            StartupError: there is no GPU to run the kernels on.
        """
        super().__init__(shape, kernels)
        if shape.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise StartupError("--attention-backend triton needs a GPU; leave it at auto, or choose cpu.")
        self._part_bytes = 4 * shape.num_heads * (shape.head_dim + 2)
        self._most_parts = max(1, _PARTIAL_BYTES // self._part_bytes)
        self._multiprocessors = multiprocessors(shape.device)
        capability = torch.cuda.get_device_capability(shape.device) if shape.device.type == "cuda" else (8, 0)
        self._group = group = shape.num_heads // shape.num_kv_heads
        is_whole = column_tiles(shape.head_dim)[1] == 0
        self._copies_tiles = capability >= (9, 0) and is_whole and shape.stored == shape.dtype != torch.float32
        are_copied = self._copies_tiles and shape.block_size % 64 == 0
        self._prefill = prefill_tiles(
            shape.head_dim, shape.dtype, capability, are_copied=are_copied, for_both=shape.batch_invariant
        )
        self._decode = [
            decode_tiles(group * queries, self._prefill, shape.head_dim, capability, are_copied=are_copied)
            for queries in (1, _MOST_QUERIES)
        ]
        if shape.batch_invariant:
            self._decode = [self._prefill] * 2
        self._long_part = PART if shape.batch_invariant else _LONG_PART
        self._expansion_tiles = expansion_tiles(shape.dtype, capability)

    @property
    def expands_heads(self) -> bool:
        """See AttentionBackend.expands_heads. Not with `--batch-invariant`: both ways round differently."""
        shape = self.shape
        return shape.expanded_dim > 0 and not shape.batch_invariant and shape.part.size == 1

    @property
    def tails(self) -> tuple[tuple[int, int], ...]:
        """See AttentionBackend.tails."""
        most = self.shape.most_chosen
        choosing = [(_MOST_QUERIES + 1, most), (1, most)] if most else []
        return ((_MOST_QUERIES + 1, _LONG_CONTEXT), *[(MIN_QUERIES, _LONG_CONTEXT)] * self.expands_heads, *choosing)

    @property
    def batch_invariant(self) -> bool:
        """See AttentionBackend.batch_invariant."""
        return self.shape.batch_invariant and not self.shape.most_chosen

    def most_positions(self, sequences: int, query_len: int = 1) -> int:
        """See AttentionBackend.most_positions."""
        if query_len <= _MOST_QUERIES:
            return self._room(sequences, query_len, PART)
        lens = np.full(sequences, query_len)
        if not self._outlast(lens, np.full(sequences, _LONG_CONTEXT + query_len)).any():
            return super().most_positions(sequences, query_len)
        return self._room(sequences, query_len, self._long_part)

    def _room(self, sequences: int, queries: int, part_keys: int) -> int:
        """The most positions that the sequences may have together: the inverse of `most_parts`."""
        return (self._most_parts // queries - sequences + 1) * part_keys * self.shape.part.size - 1

    def decoding_bytes(self, sequences: int, positions: int) -> int:
        """See AttentionBackend.decoding_bytes."""
        shape = self.shape
        rows = self._prefill.rows * self._multiprocessors // (2 * shape.num_kv_heads)  # see `_outlast`
        parts = max(
            most_parts(positions, sequences, shape.part, PART) * _MOST_QUERIES,
            most_parts(positions, sequences, shape.part, self._long_part) * (rows // self._group),
        )
        expanded = round_bytes(shape) if self.expands_heads else 0
        return max(self._part_bytes * min(self._most_parts, parts), expanded, CHOICE_BYTES if shape.most_chosen else 0)

    def _num_tiles(self, query_lens: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        return -(-query_lens * self._group // self._prefill.rows)

    def _outlast(self, query_lens: npt.NDArray[np.int64], seq_lens: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which prompts should be split into parts.

        These are prompts whose programs would take more than twice as long as if the work were spread evenly over all
        multiprocessors, and that are long enough, if there is room for the results of their parts.
        """
        share = (self._num_tiles(query_lens) * seq_lens).sum() * self.shape.num_kv_heads / self._multiprocessors
        parts = seq_lens // (self._long_part * self.shape.part.size) + 1
        return (seq_lens > np.maximum(_LONG_CONTEXT, 2 * share)) & (query_lens * parts <= self._most_parts)

    def plan_size(self, sequences: int, tokens: int) -> int:
        """See AttentionBackend.plan_size."""
        most_tiles = tokens * self._group // self._prefill.rows + min(sequences, tokens)
        return sequences + 2 * most_tiles

    def plan(
        self, query_lens: npt.NDArray[np.int64], seq_lens: npt.NDArray[np.int64], sequences: int, tokens: int
    ) -> npt.NDArray[np.int32] | None:
        """See AttentionBackend.plan. Draft tokens are computed like prompts, unless their contexts are long."""
        if self._is_better_expanded(query_lens, seq_lens):
            return None
        single = np.flatnonzero(query_lens == 1)
        prompts = np.flatnonzero(query_lens > 1)
        is_long = seq_lens[prompts] > _LONG_CONTEXT
        outlast = self._outlast(query_lens[prompts], seq_lens[prompts]) | (query_lens[prompts] <= _MOST_QUERIES)
        if (is_long & outlast).any():
            return None
        found = np.full(self.plan_size(sequences, tokens), -1, np.int32)
        found[: len(single)] = single
        of, starts = self._cut(prompts, query_lens[prompts])
        places, rows = found[sequences:].reshape(2, -1)
        places[: len(of)], rows[: len(of)] = of, starts
        return found

    def _cut(
        self, sequences: npt.NDArray[np.int64], query_lens: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Cuts sequences into tiles; returns the sequence and the first row of each tile."""
        tiles = self._num_tiles(query_lens)
        first = np.repeat(np.cumsum(tiles) - tiles, tiles)
        return np.repeat(sequences, tiles), (np.arange(len(first)) - first) * self._prefill.rows

    def prepare(self, metadata: AttentionMetadata) -> Prepared:
        """See AttentionBackend.prepare. Cuts prompts into tiles; one copy to the device, without expansion."""
        query_lens, seq_lens = (np.array(lens, np.int64) for lens in (metadata.query_lens_host, metadata.seq_lens_host))
        if metadata.plan is not None:
            ones, tiles = metadata.plan.split([len(seq_lens), len(metadata.plan) - len(seq_lens)])
            return _Prepared(metadata, self._alone(ones, seq_lens), *tiles.chunk(2))
        if (expanded := self._expanded(query_lens)).any():
            return self._expand(metadata, query_lens, expanded)
        single = np.flatnonzero(query_lens == 1)
        several = np.flatnonzero((query_lens > 1) & (query_lens <= _MOST_QUERIES))
        prompts = np.flatnonzero(query_lens > _MOST_QUERIES)
        outlasts = self._outlast(query_lens[prompts], seq_lens[prompts])
        long, prefilling = prompts[outlasts], prompts[~outlasts]
        lists = (single, several, long, *self._cut(prefilling, query_lens[prefilling]))
        packed = to_device(np.concatenate(lists).astype(np.int32), self.shape.device)
        ones, others, longs, of, starting_at = packed.split([len(each) for each in lists])
        most = [int(query_lens[each].max(initial=1)) for each in (several, long)]
        in_parts = [
            *self._alone(ones, seq_lens[single]),
            *self._together(others, seq_lens[several], most[0], self._decode[1], PART),
            *self._together(longs, seq_lens[long], most[1], self._prefill, self._long_part),
        ]
        return _Prepared(metadata, in_parts, of, starting_at)

    def _expanded(self, query_lens: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which sequences attend with plain keys and values; see Expansion."""
        return (query_lens >= MIN_QUERIES) & (self.expands_heads and self._scales is None)

    def _is_better_expanded(self, query_lens: npt.NDArray[np.int64], seq_lens: npt.NDArray[np.int64]) -> bool:
        """Whether plain keys and values save more time in a step than launching its kernels takes without a graph."""
        expanded = self._expanded(query_lens) & (seq_lens > _LONG_CONTEXT)
        return int((query_lens * seq_lens)[expanded].sum()) * self.shape.num_heads > _MANY_SCORES

    def _expand(
        self, metadata: AttentionMetadata, query_lens: npt.NDArray[np.int64], expanded: npt.NDArray[np.bool_]
    ) -> Prepared:
        """Prepares a batch of which these sequences attend with plain keys and values, and the others as usual."""
        others = None
        if not expanded.all():
            lens = np.where(expanded, 0, query_lens)
            starts = np.concatenate(([0], np.cumsum(lens))).astype(np.int32)
            rows, starts = to_device_together(
                [np.flatnonzero(np.repeat(~expanded, query_lens)), starts], self.shape.device
            )
            batch = replace(metadata, query_start_loc=starts, query_lens_host=lens.tolist())
            others = Others(rows, self.prepare(batch))
        tiles = self._expansion_tiles
        rounds, is_carried = rounds_of(np.flatnonzero(expanded).tolist(), metadata, self.shape, tiles.rows)
        expansion = TritonExpansion(others, self.shape, metadata, rounds, is_carried, tiles)
        return Prepared(metadata, expansion=expansion)

    def _alone(self, sequences: torch.Tensor, lengths: npt.NDArray[np.int64]) -> list[_InParts]:
        """Sequences with one new token.

        If there are enough of them for all multiprocessors, longer parts leave less to combine; if there are few,
        shorter parts keep more multiprocessors busy.
        """
        part_keys, parts = PART, len(sequences) * self.shape.num_kv_heads  # if each had one
        if not self.batch_invariant and parts >= self._multiprocessors:
            part_keys = 2 * PART
        elif not self.batch_invariant and 8 * parts <= self._multiprocessors:
            part_keys = PART // 2
        return self._together(sequences, lengths, 1, self._decode[0], part_keys)

    def _together(
        self, sequences: torch.Tensor, lengths: npt.NDArray[np.int64], queries: int, tiles: Tiles, part_keys: int
    ) -> list[_InParts]:
        """Groups the sequences that are computed at once: all of them, or if their parts do not fit, halves, and so on.

        Contexts may exceed what the KV cache holds in total, because sequences may share blocks.
        """
        count, positions = len(lengths), int(lengths.sum())
        if not count:
            return []
        if count == 1 or positions <= self._room(count, queries, part_keys):
            return [_InParts(sequences, positions, queries, tiles, part_keys)]
        middle = count // 2
        return [
            *self._together(sequences[:middle], lengths[:middle], queries, tiles, part_keys),
            *self._together(sequences[middle:], lengths[middle:], queries, tiles, part_keys),
        ]

    def rotate_and_forward(
        self,
        heads: torch.Tensor,
        rotation: Rotation,
        cache: torch.Tensor,
        prepared: Prepared,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See AttentionBackend.rotate_and_forward. A single kernel rotates, and writes keys and values to the cache."""
        if self._scales is not None or self.context is not None or prepared.parts or rotation.norms_are_last:
            return super().rotate_and_forward(heads, rotation, cache, prepared, options)
        slots = Slots(cache, prepared.metadata.slot_mapping)
        rotate(heads, rotation.table_rows, rotation.num_query, rotation.norms, rotation.interleaved, slots)
        return self._attend_to_cache(rotation.queries(heads[:, : rotation.num_query]), cache, prepared, options, None)

    def attend(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        cache: torch.Tensor,
        prepared: Prepared,
        options: AttentionOptions,
        lse: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See AttentionBackend.attend."""
        self.write(key, value, cache, prepared.metadata.slot_mapping)
        return self._attend_to_cache(query, cache, prepared, options, lse)

    def write(self, key: torch.Tensor, value: torch.Tensor, cache: torch.Tensor, slot_mapping: torch.Tensor) -> None:
        """See AttentionBackend.write."""
        write_cache(key, value, cache, slot_mapping)

    def _attend_to_cache(
        self,
        query: torch.Tensor,
        cache: torch.Tensor,
        prepared: Prepared,
        options: AttentionOptions,
        lse: torch.Tensor | None,
    ) -> torch.Tensor:
        """Attends to the cache, to which the new keys and values have been written already."""
        assert isinstance(prepared, _Prepared)
        metadata = prepared.metadata
        if query.stride()[1:] != (query.shape[2], 1):  # the kernels can read queries in place beside keys and values
            query = query.contiguous()
        # A graph does not write padding rows. With a plan these may be most of the rows, so they had better be numbers.
        output = query.new_empty(query.shape) if metadata.plan is None else query.new_zeros(query.shape)
        where = (metadata.block_table, metadata.query_start_loc, metadata.seq_lens)
        if len(prepared.tile_sequences):
            prompts = (prepared.tile_sequences, prepared.tile_starts)
            part_keys = PART if self.batch_invariant else 0
            paged_prefill(
                query, cache, output, *where, *prompts, options, self._prefill, part_keys, self.shape.part, lse,
                self._descriptor(cache, self._prefill),
            )  # fmt: skip
        programs, part = _PROGRAMS_EACH * self._multiprocessors, self.shape.part
        for sequences, positions, queries, tiles, part_keys in prepared.in_parts:
            capacity = most_parts(positions, len(sequences), part, part_keys, options.sliding_window, queries)
            paged_decode(
                query, cache, output, *where, sequences, capacity, programs, options, tiles, part_keys, queries, part,
                lse, self._descriptor(cache, tiles), in_turn=self.batch_invariant,
            )  # fmt: skip
        return output

    def _descriptor(self, cache: torch.Tensor, tiles: Tiles) -> TensorDescriptor | None:
        """Tensor descriptor with which a GPU copies whole tiles; None if it cannot, or if tiles span several blocks."""
        can_copy = self._copies_tiles and cache.is_contiguous() and self.shape.block_size % tiles.keys == 0
        return block_descriptor(cache, tiles.keys) if can_copy else None
