"""Scores of cached positions by an indexer, and attention to those that were chosen; see ChosenAttention."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine_svc.kernels.attend import load_columns, log_sum, store_columns
from engine_svc.kernels.eight_bits import in_bytes, widen
from engine_svc.kernels.tiles import Tiles, column_tiles

_TILE = 128  # keys that are scored at a time


@triton.jit
def _rows_of(positions, present, table_ptr, BLOCK_SIZE: tl.constexpr):
    """Rows of the cache, int64, that hold these positions of a sequence."""
    block = tl.load(table_ptr + positions // BLOCK_SIZE, mask=present, other=0)
    return block.to(tl.int64) * BLOCK_SIZE + positions % BLOCK_SIZE


@triton.jit(do_not_specialize=["block_table_stride", "count"])
def _score_kernel(
    query_ptr, weights_ptr, keys_ptr, scores_ptr, block_table_ptr, sequences_ptr, positions_ptr, block_table_stride,
    count, HEADS: tl.constexpr, HEADS_PADDED: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One program per query and tile of positions."""
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * TILE
    position = tl.load(positions_ptr + row)
    places = first + tl.arange(0, TILE)
    target, inside = scores_ptr + row * count + places, places < count
    if first > position:
        tl.store(target, tl.full([TILE], float("-inf"), tl.float32), mask=inside)
        return
    seen, heads = places <= position, tl.arange(0, HEADS_PADDED)
    query = load_columns(query_ptr, (row * HEADS + heads) * DIM, heads < HEADS, True, 0, DIM_PADDED, DIM)
    weights = tl.load(weights_ptr + row * HEADS + heads, mask=heads < HEADS, other=0.0)
    table_ptr = block_table_ptr + tl.load(sequences_ptr + row).to(tl.int64) * block_table_stride
    rows = _rows_of(places, seen, table_ptr, BLOCK_SIZE) * DIM
    key = widen(load_columns(keys_ptr, rows, seen, True, 0, DIM_PADDED, DIM), query.dtype)
    products = tl.maximum(tl.dot(query, tl.trans(key), input_precision="ieee"), 0.0)
    scores = tl.sum(products * weights[:, None], 0)
    tl.store(target, tl.where(seen, scores, float("-inf")), mask=inside)


def score_positions(
    query: torch.Tensor, weights: torch.Tensor, keys: torch.Tensor, block_table: torch.Tensor,
    sequences: torch.Tensor, positions: torch.Tensor, count: int,
) -> torch.Tensor:  # fmt: skip
    """Sums over heads of weight * ReLU(query * key), for the first `count` positions of each query's sequence.

    Args:
        query: contiguous [queries, heads, dim].
        weights: contiguous float32 [queries, heads].
        keys: contiguous [num_blocks, block_size, dim].
        block_table: int32 [num_seqs, blocks].
        sequences, positions: int32 [queries]; positions are those of the queries.

    Returns:
        float32 [queries, count]; minus infinity behind a query's own position.
    """
    (queries, heads, dim), (_, block_size, _) = query.shape, keys.shape
    scores = torch.empty((queries, count), dtype=torch.float32, device=query.device)
    _score_kernel[(queries, triton.cdiv(count, _TILE))](
        query, weights, in_bytes(keys), scores, block_table, sequences, positions, block_table.stride(0), count,
        HEADS=heads, HEADS_PADDED=max(16, triton.next_power_of_2(heads)), DIM=dim,
        DIM_PADDED=max(16, triton.next_power_of_2(dim)), BLOCK_SIZE=block_size, TILE=_TILE, num_warps=4,
    )  # fmt: skip
    return scores


@triton.jit(do_not_specialize=["block_table_stride", "queries"])
def _attend_kernel(
    query_ptr, cache_ptr, chosen_ptr, sequences_ptr, block_table_ptr, output_ptr, lse_ptr, scale, block_table_stride,
    queries, MOST: tl.constexpr, HEADS: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, MAIN: tl.constexpr,
    REST: tl.constexpr, BLOCK_SIZE: tl.constexpr, PART_KEYS: tl.constexpr, TILE_N: tl.constexpr,
):  # fmt: skip
    """One program per query, part of its chosen positions, and ROWS heads."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    heads = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    present = heads < HEADS
    of_heads = (row * HEADS + heads) * DIM
    query = load_columns(query_ptr, of_heads, present, True, 0, MAIN, DIM)
    result = tl.zeros([ROWS, MAIN], tl.float32)
    query_rest = None
    rest = tl.zeros([ROWS, max(REST, 1)], tl.float32)
    if REST > 0:
        query_rest = load_columns(query_ptr, of_heads, present, True, MAIN, REST, DIM)
    table_ptr = block_table_ptr + tl.load(sequences_ptr + row).to(tl.int64) * block_table_stride
    best, total = tl.full([ROWS], -1.0e30, tl.float32), tl.zeros([ROWS], tl.float32)
    factor = scale * 1.4426950408889634  # for exponents of two
    for place in range(part * PART_KEYS, tl.minimum((part + 1) * PART_KEYS, MOST), TILE_N):
        places = place + tl.arange(0, TILE_N)
        inside = places < MOST
        positions = tl.load(chosen_ptr + row * MOST + places, mask=inside, other=0)
        rows = _rows_of(positions, inside, table_ptr, BLOCK_SIZE) * DIM
        key = widen(load_columns(cache_ptr, rows, inside, True, 0, MAIN, DIM), query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee")
        if REST > 0:
            key_rest = widen(load_columns(cache_ptr, rows, inside, True, MAIN, REST, DIM), query.dtype)
            scores = tl.dot(query_rest, tl.trans(key_rest), scores, input_precision="ieee")
        scores = tl.where(inside[None, :], scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1) * factor)
        weights = tl.exp2(tl.fma(scores, factor, -new_best[:, None]))
        shrink = tl.exp2(best - new_best)
        total = tl.fma(total, shrink, tl.sum(weights, axis=1))
        weights = weights.to(query.dtype)
        result = tl.dot(weights, key, result * shrink[:, None], input_precision="ieee")
        if REST > 0:
            rest = tl.dot(weights, key_rest, rest * shrink[:, None], input_precision="ieee")
        best = new_best
    out_row = (part.to(tl.int64) * queries + row) * HEADS + heads
    store_columns(output_ptr, out_row * DIM, present, result / total[:, None], 0, MAIN, DIM)
    if REST > 0:
        store_columns(output_ptr, out_row * DIM, present, rest / total[:, None], MAIN, REST, DIM)
    tl.store(lse_ptr + out_row, log_sum(best, total), mask=present)


def attend_chosen(
    query: torch.Tensor, cache: torch.Tensor, chosen: torch.Tensor, sequences: torch.Tensor,
    block_table: torch.Tensor, scale: float, tiles: Tiles, parts: int,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attends to chosen positions, which are divided into parts.

    Args:
        query: contiguous [queries, heads, dim].
        cache: contiguous [num_blocks, block_size, dim], keys that are also values.
        chosen: contiguous int32 [queries, most], positions of each query's sequence.
        sequences: int32 [queries]; block_table: int32 [num_seqs, blocks].

    Returns:
        The parts' results [parts, queries, heads, dim], of float32 if there are several, and the logarithms of their
        sums of exponentiated scores, float32 [parts, queries, heads].
    """
    (queries, heads, dim), most = query.shape, chosen.shape[1]
    part_keys = triton.cdiv(triton.cdiv(most, parts), tiles.keys) * tiles.keys
    parts = triton.cdiv(most, part_keys)
    dtype = query.dtype if parts == 1 else torch.float32
    output = torch.empty((parts, queries, heads, dim), dtype=dtype, device=query.device)
    lse = torch.empty((parts, queries, heads), dtype=torch.float32, device=query.device)
    main, rest = column_tiles(dim)
    _attend_kernel[(queries, parts, triton.cdiv(heads, tiles.rows))](
        query, in_bytes(cache), chosen, sequences, block_table, output, lse, scale, block_table.stride(0), queries,
        MOST=most, HEADS=heads, ROWS=tiles.rows, DIM=dim, MAIN=main, REST=rest, BLOCK_SIZE=cache.shape[1],
        PART_KEYS=part_keys, TILE_N=tiles.keys, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return output, lse
