"""Prompts of compressed attention, attended to with plain keys and values of all heads instead of the cached vectors.

For each pair of a query and a key, a head's product with a vector and the sum of vectors take 2 rank + rotated_dim
multiplications, and those with the head's own keys and values only plain_dim + rotated_dim + value_dim: 1088 and 320 in
DeepSeek's models. But keys and values must be computed from the vectors first, for all positions that a prompt sees, so
this is worthwhile from some number of new tokens on. It is also how such models are defined (DeepSeek-V2, 2024).

Keys and values are computed for a bounded number of positions at a time. A prompt that sees more positions is attended
to in several rounds, with its online softmax carried from one to the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.attention.base import AttentionMetadata, AttentionShape, ExpandVectors, Expansion
from engine_svc.attention.stored import bits
from engine_svc.kernels.cache_write import write_cache
from engine_svc.kernels.expanded_prefill import Carried, expanded_prefill
from engine_svc.kernels.tiles import Tiles
from engine_svc.transfer import to_device_together

# New tokens from which on keys and values are computed. By an H200's rates, a position's should take as long as
# attending with 50 queries saves.
MIN_QUERIES = 128
_BYTES = 256 << 20  # of keys and values that are computed at a time
_ALIGNMENT = 128  # rows, a multiple of all tiles' keys


class Segment(NamedTuple):
    """Positions of a sequence whose keys and values are computed together."""

    sequence: int
    first: int
    keys: int


class Round(NamedTuple):
    """The positions whose keys and values are computed at a time, and who attends to them."""

    slots: torch.Tensor  # int64 [keys], where their vectors are in the cache
    tiles: torch.Tensor  # int32 [5, tiles], see expanded_prefill


@dataclass(frozen=True)
class TritonExpansion(Expansion):
    """See Expansion."""

    shape: AttentionShape
    metadata: AttentionMetadata
    rounds: list[Round]
    is_carried: bool  # whether a prompt is in several rounds
    tiles: Tiles

    def attend(
        self, query: torch.Tensor, rotated: torch.Tensor, key: torch.Tensor, expand: ExpandVectors,
        cache: torch.Tensor, output: torch.Tensor, scale: float,
    ) -> None:  # fmt: skip
        """See Expansion.attend."""
        if self.others is None:
            write_cache(key, key, cache, self.metadata.slot_mapping)
        carried = Carried.of(output if self.is_carried else output[:0])
        vectors_of_all = bits(cache).view(-1, self.shape.head_dim)
        for slots, table in self.rounds:
            vectors = vectors_of_all.index_select(0, slots).view(cache.dtype).to(query.dtype)
            expanded_prefill(
                query, rotated, expand(vectors), vectors[:, -rotated.shape[2] :], output, carried,
                self.metadata.query_start_loc, self.metadata.seq_lens, table, scale, self.tiles,
            )  # fmt: skip


def _most_keys(shape: AttentionShape) -> int:
    """The most keys of a round."""
    return max(1, _BYTES // (shape.num_heads * shape.expanded_dim * shape.dtype.itemsize) // _ALIGNMENT) * _ALIGNMENT


def round_bytes(shape: AttentionShape) -> int:
    """Bytes that the largest round takes: its vectors, keys and values.

    What is carried to further rounds is about as much as the round of a startup takes, which counts in addition.
    """
    return _most_keys(shape) * (shape.num_heads * shape.expanded_dim + shape.head_dim) * shape.dtype.itemsize


def rounds_of(
    prompts: Iterable[int], metadata: AttentionMetadata, shape: AttentionShape, tile_rows: int
) -> tuple[list[Round], bool]:
    """The rounds in which these sequences attend, and whether one of them does so in several.

    Args:
        tile_rows: queries of a tile.
    """
    divided = list(_divided(prompts, metadata.seq_lens_host, _most_keys(shape)))
    arrays = [array for segments in divided for array in _arrays(segments, metadata, tile_rows)]
    moved, rounds, size = iter(to_device_together(arrays, shape.device)), [], shape.block_size
    for sequences, positions, tiles in zip(moved, moved, moved, strict=True):
        blocks = metadata.block_table[sequences, positions // size]
        rounds.append(Round(blocks.long() * size + positions % size, tiles))
    return rounds, any(segment.first for segments in divided for segment in segments)


def _divided(prompts: Iterable[int], seq_lens: Sequence[int], most: int) -> Iterator[list[Segment]]:
    """The segments of each round, each of which begins at a multiple of _ALIGNMENT rows."""
    segments, free = list[Segment](), most
    for sequence in prompts:
        first = 0
        while first < seq_lens[sequence]:
            keys = min(free, seq_lens[sequence] - first)
            segments.append(Segment(sequence, first, keys))
            first, free = first + keys, free - _padded(keys)
            if not free:
                yield segments
                segments, free = [], most
    if segments:
        yield segments


def _padded(keys: int) -> int:
    return -(-keys // _ALIGNMENT) * _ALIGNMENT


def _arrays(segments: list[Segment], metadata: AttentionMetadata, tile_rows: int) -> Iterator[npt.NDArray[np.int32]]:
    """(sequence of each row, its position, table of tiles): see Round.

    Rows that fill up a segment repeat its last position: what another sequence has there might not be finite.
    """
    sequences, firsts, counts = np.array(segments, np.int32).T
    rows = [_padded(segment.keys) for segment in segments]
    yield np.repeat(sequences, rows)
    places = np.concatenate([np.arange(each) for each in rows], dtype=np.int32)
    yield np.repeat(firsts, rows) + np.minimum(places, np.repeat(counts - 1, rows))
    tables = []
    for (sequence, first, keys), at in zip(segments, itertools.accumulate(rows, initial=0), strict=False):
        query_len, seq_len = metadata.query_lens_host[sequence], metadata.seq_lens_host[sequence]
        starts = np.arange(0, query_len, tile_rows)
        seeing = starts[seq_len - query_len + np.minimum(starts + tile_rows, query_len) > first]
        tables.append(np.stack(np.broadcast_arrays(sequence, seeing, first, keys, at)))
    yield np.concatenate(tables, axis=1, dtype=np.int32)
