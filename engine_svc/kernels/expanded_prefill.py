"""Prompts of compressed attention, attended to with the plain keys and values of each head.

The tiling is FlashAttention-2's (Dao 2023). Keys and values lie one after the other, as a product has computed them
from the cached vectors; the rotated part of a key is the same for all heads, and is read from the vectors.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from engine_svc.kernels.attend import add_shrunk, load_columns, store_columns
from engine_svc.kernels.overlap import await_inputs, begins_early
from engine_svc.kernels.tiles import Tiles


class Carried(NamedTuple):
    """The online softmax of rows that see further keys in a later call; empty if there are none."""

    result: torch.Tensor  # float32 [num_tokens, num_heads, value_dim]
    best: torch.Tensor  # float32 [num_tokens, num_heads], the greatest score, as an exponent of two
    total: torch.Tensor  # float32 [num_tokens, num_heads]

    @classmethod
    def of(cls, output: torch.Tensor) -> Carried:
        """Room for the rows of an output."""
        return cls(*(output.new_empty(shape, dtype=torch.float32) for shape in (output.shape, *[output.shape[:2]] * 2)))


@triton.jit(do_not_specialize=["num_tiles"])
def _expanded_kernel(
    query_ptr, rotated_ptr, expanded_ptr, vector_ptr, output_ptr, result_ptr, best_ptr, total_ptr, tile_ptr,
    query_start_ptr, seq_lens_ptr, scale, query_stride, vector_stride, num_tiles, HEADS: tl.constexpr,
    PLAIN: tl.constexpr, PLAIN_PADDED: tl.constexpr, ROTATED: tl.constexpr, ROTATED_PADDED: tl.constexpr,
    VALUE: tl.constexpr, VALUE_PADDED: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr,
):  # fmt: skip
    """One program per tile and head."""
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # a prompt's last tiles, which see the most keys, begin first
    head = tl.program_id(1)
    await_inputs()
    sequence = tl.load(tile_ptr + tile)
    start = tl.load(tile_ptr + num_tiles + tile)
    first = tl.load(tile_ptr + 2 * num_tiles + tile)  # position of the first key
    count = tl.load(tile_ptr + 3 * num_tiles + tile)  # of keys
    at = tl.load(tile_ptr + 4 * num_tiles + tile)  # row of the first key
    first_row = tl.load(query_start_ptr + sequence)
    query_len = tl.load(query_start_ptr + sequence + 1) - first_row
    computed = tl.load(seq_lens_ptr + sequence) - query_len

    queries = start + tl.arange(0, TILE_M)
    present = queries < query_len
    row = (first_row + queries).to(tl.int64)
    of_head = row * query_stride + head * (PLAIN + ROTATED)
    query = load_columns(query_ptr, of_head, present, True, 0, PLAIN_PADDED, PLAIN)
    query_rotated = load_columns(rotated_ptr, (row * HEADS + head) * ROTATED, present, True, 0, ROTATED_PADDED, ROTATED)
    visible = tl.minimum(computed + queries + 1 - first, count)
    carried = row * HEADS + head
    is_later = queries < tl.where(first > 0, query_len, 0)
    best = tl.load(best_ptr + carried, mask=is_later, other=-1.0e30)
    total = tl.load(total_ptr + carried, mask=is_later, other=0.0)
    result = load_columns(result_ptr, carried * VALUE, is_later, True, 0, VALUE_PADDED, VALUE)

    are_keys = tl.arange(0, TILE_N) >= 0
    factor = scale * 1.4426950408889634  # for exponents of two
    whole = tl.maximum(tl.min(visible, 0), 0) // TILE_N * TILE_N
    bounds = (0, whole, tl.max(visible, 0))
    for section in tl.static_range(2):  # tiles that all rows see, tiles at the end
        for place in range(bounds[section], bounds[section + 1], TILE_N):
            keys = (at + place + tl.arange(0, TILE_N)).to(tl.int64)
            keys_at = (keys * HEADS + head) * (PLAIN + VALUE)
            key = load_columns(expanded_ptr, keys_at, are_keys, False, 0, PLAIN_PADDED, PLAIN)
            key_rotated = load_columns(vector_ptr, keys * vector_stride, are_keys, False, 0, ROTATED_PADDED, ROTATED)
            scores = tl.dot(query, tl.trans(key), input_precision="ieee")
            scores = tl.dot(query_rotated, tl.trans(key_rotated), scores, input_precision="ieee")
            if section == 1:
                scores = tl.where((place + tl.arange(0, TILE_N))[None, :] < visible[:, None], scores, float("-inf"))
            new_best = tl.maximum(best, tl.max(scores, axis=1) * factor)
            weights = tl.exp2(tl.fma(scores, factor, -new_best[:, None]))
            shrink = tl.exp2(best - new_best)
            total = add_shrunk(total, shrink, tl.sum(weights, axis=1))
            value = load_columns(expanded_ptr + PLAIN, keys_at, are_keys, False, 0, VALUE_PADDED, VALUE)
            result = tl.dot(weights.to(query.dtype), value, result * shrink[:, None], input_precision="ieee")
            best = new_best
    if computed + tl.minimum(start + TILE_M, query_len) <= first + count:  # no row sees further keys
        result = result / tl.maximum(total, 1.0e-30)[:, None]
        store_columns(output_ptr, carried * VALUE, present, result, 0, VALUE_PADDED, VALUE)
    else:
        store_columns(result_ptr, carried * VALUE, present, result, 0, VALUE_PADDED, VALUE)
        tl.store(best_ptr + carried, best, mask=present)
        tl.store(total_ptr + carried, total, mask=present)


def expanded_prefill(
    query: torch.Tensor,
    rotated: torch.Tensor,
    expanded: torch.Tensor,
    vectors: torch.Tensor,
    output: torch.Tensor,
    carried: Carried,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    tile_table: torch.Tensor,
    scale: float,
    tiles: Tiles,
) -> None:
    """Fills the rows of `output` that the tiles cover; those of `carried` for tiles that see keys beyond those given.

    Args:
        query: [num_tokens, num_heads, plain_dim + rotated_dim], of which only the plain part is read; heads contiguous,
            tokens at any stride.
        rotated: [num_tokens, num_heads, rotated_dim], contiguous.
        expanded: [num_keys, num_heads, plain_dim + value_dim], contiguous: keys and values.
        vectors: [num_keys, rotated_dim], the rotated part of the keys of all heads; contiguous rows at any stride.
        output: [num_tokens, num_heads, value_dim], contiguous.
        query_start_loc: int32 [num_seqs + 1]; seq_lens: int32 [num_seqs].
        tile_table: int32 [5, tiles]: a tile's sequence, its first row within the sequence, the position of the first of
            its keys here, their number, and the first one's row in `expanded`. After these keys, up to the next
            multiple of `tiles.keys`, there are others that are finite if they are.
    """
    heads, rotated_dim, value_dim = query.shape[1], rotated.shape[2], output.shape[2]
    plain_dim = query.shape[2] - rotated_dim
    padded = [max(16, triton.next_power_of_2(dim)) for dim in (plain_dim, rotated_dim, value_dim)]
    _expanded_kernel[(tile_table.shape[1], heads)](
        query, rotated, expanded, vectors, output, *carried, tile_table, query_start_loc, seq_lens, scale,
        query.stride(0), vectors.stride(0), tile_table.shape[1], HEADS=heads, PLAIN=plain_dim, PLAIN_PADDED=padded[0],
        ROTATED=rotated_dim, ROTATED_PADDED=padded[1], VALUE=value_dim, VALUE_PADDED=padded[2], TILE_M=tiles.rows,
        TILE_N=tiles.keys, num_warps=tiles.warps, launch_pdl=begins_early(), num_stages=tiles.stages,
    )  # fmt: skip
