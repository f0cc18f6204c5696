"""The GPU backend: Triton kernels over the paged cache, prefill and decode each with its own.

To round alike, prefill attends in parts as decode does, and decode takes as many rows at a time as prefill.
"""

from __future__ import annotations

import os
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
    Rotation,
)
from engine_svc.kernels.cache_write import write_cache
from engine_svc.kernels.paged_decode import PART, most_parts, paged_decode
from engine_svc.kernels.paged_prefill import paged_prefill
from engine_svc.kernels.rotary import Slots, rotate
from engine_svc.kernels.tiles import Tiles, decode_tiles, prefill_tiles
from engine_svc.native.library import Kernels
from engine_svc.transfer import to_device
from quire.errors import StartupError

_PARTIAL_BYTES = 256 << 20  # of what parts of contexts come to, before it is combined
# New tokens of a sequence up to which its keys are split among programs, as those of a decode are: guesses that are
# verified, and what is left of a prompt.
_MOST_QUERIES = 8
# Programs of decode for each multiprocessor: as many as have room in its shared memory, at most.
_PROGRAMS_EACH = 4


class _Decoding(NamedTuple):
    sequences: torch.Tensor  # int32 [some of those with few new tokens]
    positions: int  # of all of them together, at most
    queries: int  # new tokens of one, at most
    tiles: Tiles


@dataclass(frozen=True)
class _Prepared(Prepared):
    decoding: list[_Decoding]
    tile_sequences: torch.Tensor  # int32 [tiles of the other sequences]
    tile_starts: torch.Tensor  # int32 [tiles], first row of the tile within its sequence: see paged_prefill


class TritonBackend(AttentionBackend):
    """The cache of a layer is [planes, num_blocks, block_size, num_kv_heads, head_dim]."""

    name = "triton"
    block_dimension = 1
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
        self._programs = _PROGRAMS_EACH * _multiprocessors(shape.device)
        capability = torch.cuda.get_device_capability(shape.device) if shape.device.type == "cuda" else (8, 0)
        self._group = group = shape.num_heads // shape.num_kv_heads
        self._prefill = prefill_tiles(shape.head_dim, shape.dtype, capability)
        self._decode = [decode_tiles(group * queries, self._prefill) for queries in (1, _MOST_QUERIES)]
        if shape.batch_invariant:
            self._decode = [self._prefill] * 2

    @property
    def batch_invariant(self) -> bool:
        """See AttentionBackend.batch_invariant."""
        return self.shape.batch_invariant

    def allocate(self, num_blocks: int, num_layers: int) -> list[torch.Tensor]:
        """See AttentionBackend.allocate."""
        shape = self.shape
        size = (shape.planes, num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
        return [torch.zeros(size, dtype=shape.stored, device=shape.device) for _ in range(num_layers)]

    def most_positions(self, sequences: int, query_len: int = 1) -> int:
        """See AttentionBackend.most_positions."""
        if query_len > _MOST_QUERIES:
            return super().most_positions(sequences, query_len)
        # The inverse of `most_parts`.
        return (self._most_parts // query_len - sequences + 1) * PART * self.shape.part.size - 1

    def decoding_bytes(self, sequences: int, positions: int) -> int:
        """See AttentionBackend.decoding_bytes."""
        parts = most_parts(positions, sequences, self.shape.part) * _MOST_QUERIES
        return self._part_bytes * min(self._most_parts, parts)

    def prepare(self, metadata: AttentionMetadata) -> _Prepared:
        """Cuts the prompts into tiles; one copy to the device for all."""
        query_lens, seq_lens = np.array(metadata.query_lens_host), np.array(metadata.seq_lens_host)
        single = np.flatnonzero(query_lens == 1)
        several = np.flatnonzero((query_lens > 1) & (query_lens <= _MOST_QUERIES))
        prefilling = np.flatnonzero(query_lens > _MOST_QUERIES)
        rows = self._prefill.rows
        tiles = -(-query_lens[prefilling] * self._group // rows)
        sequences = np.repeat(prefilling, tiles)
        first = np.repeat(np.cumsum(tiles) - tiles, tiles)
        starts = (np.arange(len(sequences)) - first) * rows
        parts = (single, several, sequences, starts)
        packed = to_device(np.concatenate(parts).astype(np.int32), self.shape.device)
        ones, others, of, starting_at = packed.split([len(part) for part in parts])
        together = [
            *self._together(ones, seq_lens[single], 1, self._decode[0]),
            *self._together(others, seq_lens[several], int(query_lens[several].max(initial=1)), self._decode[1]),
        ]
        return _Prepared(metadata, together, of, starting_at)

    def _together(
        self, decoding: torch.Tensor, lengths: npt.NDArray[np.int64], queries: int, tiles: Tiles
    ) -> list[_Decoding]:
        """All at once, but where contexts come to more than most caches hold, for sequences may share them: then half
        of them after the other half, and so on."""
        count, positions = len(lengths), int(lengths.sum())
        if not count:
            return []
        if count == 1 or positions <= self.most_positions(count, queries):
            return [_Decoding(decoding, positions, queries, tiles)]
        middle = count // 2
        return [
            *self._together(decoding[:middle], lengths[:middle], queries, tiles),
            *self._together(decoding[middle:], lengths[middle:], queries, tiles),
        ]

    def rotate_and_forward(
        self,
        heads: torch.Tensor,
        rotation: Rotation,
        cache: torch.Tensor,
        prepared: Prepared,
        options: AttentionOptions,
    ) -> torch.Tensor:
        """See AttentionBackend.rotate_and_forward: one kernel rotates, and writes keys and values."""
        if self._scales is not None or self.context is not None or rotation.norms_are_last:
            return super().rotate_and_forward(heads, rotation, cache, prepared, options)
        slots = Slots(cache, prepared.metadata.slot_mapping)
        rotate(heads, rotation.table_rows, rotation.num_query, rotation.norms, rotation.interleaved, slots)
        return self._attend_to_cache(heads[:, : rotation.num_query], cache, prepared, options, None)

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
        write_cache(key, value, cache, prepared.metadata.slot_mapping)
        return self._attend_to_cache(query, cache, prepared, options, lse)

    def _attend_to_cache(
        self,
        query: torch.Tensor,
        cache: torch.Tensor,
        prepared: Prepared,
        options: AttentionOptions,
        lse: torch.Tensor | None,
    ) -> torch.Tensor:
        """Keys and values are written already."""
        assert isinstance(prepared, _Prepared)
        metadata = prepared.metadata
        if query.stride()[1:] != (query.shape[2], 1):  # the kernels read them where they lie beside keys and values
            query = query.contiguous()
        output = query.new_empty(query.shape)  # a graph of several tokens a sequence leaves nobody's rows as they are
        where = (metadata.block_table, metadata.query_start_loc, metadata.seq_lens)
        if len(prepared.tile_sequences):
            prompts = (prepared.tile_sequences, prepared.tile_starts)
            part_keys = PART if self.batch_invariant else 0
            paged_prefill(
                query, cache, output, *where, *prompts, options, self._prefill, part_keys, self.shape.part, lse
            )
        for sequences, positions, queries, tiles in prepared.decoding:
            capacity = most_parts(positions, len(sequences), self.shape.part, options.sliding_window, queries)
            paged_decode(
                query, cache, output, *where, sequences, capacity, self._programs, options, tiles, queries,
                self.shape.part, lse, in_turn=self.batch_invariant,
            )  # fmt: skip
        return output


def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
