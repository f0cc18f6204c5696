"""The GPU backend: Triton kernels over the paged cache, prefill and decode each with its own.

To round alike, prefill attends in parts as decode does, and decode takes as many rows at a time as prefill.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import torch

from engine_svc.attention.base import AttentionBackend, AttentionMetadata, AttentionOptions, AttentionShape, Prepared
from engine_svc.kernels.cache_write import write_cache
from engine_svc.kernels.paged_decode import PART, paged_decode
from engine_svc.kernels.paged_prefill import paged_prefill
from engine_svc.kernels.tiles import query_rows
from engine_svc.native.library import Kernels
from engine_svc.transfer import to_device
from quire.errors import StartupError


@dataclass(frozen=True)
class _Prepared(Prepared):
    decoding: torch.Tensor  # int32 [sequences with one new token]
    tile_sequences: torch.Tensor  # int32 [tiles of the other sequences]
    tile_starts: torch.Tensor  # int32 [tiles], first query of the tile within its sequence
    longest_decoding: int  # positions of the longest sequence with one new token


class TritonBackend(AttentionBackend):
    """The cache of a layer is [planes, num_blocks, block_size, num_kv_heads, head_dim]."""

    name = "triton"
    block_dimension = 1

    def __init__(self, shape: AttentionShape, kernels: Kernels | None = None) -> None:
        """
        Raises:
            StartupError: there is no GPU to run the kernels on.
        """
        super().__init__(shape, kernels)
        if shape.device.type != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
            raise StartupError("--attention-backend triton needs a GPU; leave it at auto, or choose cpu.")

    @property
    def batch_invariant(self) -> bool:
        """See AttentionBackend.batch_invariant."""
        return self.shape.batch_invariant

    def allocate(self, num_blocks: int, num_layers: int) -> list[torch.Tensor]:
        """See AttentionBackend.allocate."""
        shape = self.shape
        size = (shape.planes, num_blocks, shape.block_size, shape.num_kv_heads, shape.head_dim)
        return [torch.zeros(size, dtype=shape.stored, device=shape.device) for _ in range(num_layers)]

    def prepare(self, metadata: AttentionMetadata) -> _Prepared:
        """Cuts the prompts into tiles; one copy to the device for all."""
        query_lens = np.array(metadata.query_lens_host)
        decoding = np.flatnonzero(query_lens == 1)
        prefilling = np.flatnonzero(query_lens != 1)
        rows = query_rows(self.shape.head_dim)
        tiles = -(-query_lens[prefilling] // rows)
        sequences = np.repeat(prefilling, tiles)
        first = np.repeat(np.cumsum(tiles) - tiles, tiles)
        starts = (np.arange(len(sequences)) - first) * rows
        packed = to_device(np.concatenate((decoding, sequences, starts)).astype(np.int32), self.shape.device)
        longest = np.array(metadata.seq_lens_host)[decoding].max(initial=0)
        to_decode, of, starting_at = packed.split((len(decoding), len(sequences), len(starts)))
        return _Prepared(metadata, to_decode, of, starting_at, int(longest))

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
        assert isinstance(prepared, _Prepared)
        metadata = prepared.metadata
        write_cache(key, value, cache, metadata.slot_mapping)
        query = query.contiguous()
        # Of several tokens a sequence, a graph may have rows that are nobody's, and nobody writes.
        output = torch.zeros_like(query) if len(prepared.tile_sequences) else torch.empty_like(query)
        where = (metadata.block_table, metadata.query_start_loc, metadata.seq_lens)
        if len(prepared.tile_sequences):
            tiles = (prepared.tile_sequences, prepared.tile_starts)
            part_keys = PART if self.batch_invariant else 0
            paged_prefill(query, cache, output, *where, *tiles, options, part_keys, self.shape.part, lse)
        if len(prepared.decoding):
            paged_decode(
                query, cache, output, *where, prepared.decoding, prepared.longest_decoding, options,
                self.batch_invariant, self.shape.part, lse,
            )  # fmt: skip
        return output
