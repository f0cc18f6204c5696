"""Attention of several new tokens per sequence over the paged cache, with an online softmax.

The tiling is FlashAttention-2's (Dao 2023); keys and values are found through the block table as in PagedAttention
(Kwon et al. 2023).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from engine_svc.attention.base import AttentionOptions
from engine_svc.attention.context import ContextPart
from engine_svc.kernels.attend import (
    add_shrunk,
    attend_keys,
    first_seen,
    held,
    load_columns,
    log_sum,
    seen_until,
    store_columns,
)
from engine_svc.kernels.cache_write import layers_sharing
from engine_svc.kernels.eight_bits import in_bytes
from engine_svc.kernels.overlap import await_inputs, begins_early
from engine_svc.kernels.tiles import Tiles, column_tiles


@triton.jit(
    do_not_specialize=["block_table_stride"], do_not_specialize_on_alignment=["tile_sequence_ptr", "tile_start_ptr"]
)
def _prefill_kernel(
    query_ptr, cache_ptr, descriptor, output_ptr, block_table_ptr, query_start_ptr, seq_lens_ptr, tile_sequence_ptr,
    tile_start_ptr, scale, softcap, sinks_ptr, slopes_ptr, lse_ptr, query_stride, output_stride, block_table_stride,
    value_offset, part_of_context, WINDOW: tl.constexpr, CHUNKED: tl.constexpr, SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr, PLANES: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    MAIN: tl.constexpr, REST: tl.constexpr, BLOCK_SIZE: tl.constexpr, SHARING: tl.constexpr, TILE_M: tl.constexpr,
    TILE_N: tl.constexpr, PART_KEYS: tl.constexpr, BIDIRECTIONAL: tl.constexpr, LSE: tl.constexpr,
    CONTEXT_PARTS: tl.constexpr, ALIBI: tl.constexpr,
):  # fmt: skip
    """One program per tile and key-value head; a tile's rows are the heads of the group, one query after the other.

    With PART_KEYS > 0, each part of so many keys gives its own result, and the results are combined as in paged_decode;
    with 0 there is one result.
    """
    await_inputs()
    tile = tl.num_programs(0) - 1 - tl.program_id(0)  # a prompt's last tiles, which see the most keys, begin first
    kv_head = tl.program_id(1)
    sequence = tl.load(tile_sequence_ptr + tile)
    if sequence < 0:  # padding
        return
    start = tl.load(tile_start_ptr + tile)  # first row of the tile, counted within its sequence
    first_row = tl.load(query_start_ptr + sequence)
    query_len = tl.load(query_start_ptr + sequence + 1) - first_row
    seq_len = tl.load(seq_lens_ptr + sequence)

    queries = (start + tl.arange(0, TILE_M)) // GROUP
    heads = kv_head * GROUP + (start + tl.arange(0, TILE_M)) % GROUP
    positions = seq_len - query_len + queries
    row = (first_row + queries).to(tl.int64)
    present = queries < query_len
    query = load_columns(query_ptr, row * query_stride + heads * DIM, present, True, 0, MAIN, DIM)
    query_rest = None
    if REST > 0:
        query_rest = load_columns(query_ptr, row * query_stride + heads * DIM, present, True, MAIN, REST, DIM)

    best = tl.full([TILE_M], -1.0e30, tl.float32)  # finite, so that rows that see nothing yet do not become NaN
    total = tl.zeros([TILE_M], tl.float32)
    if SINKS:
        best = tl.load(sinks_ptr + heads).to(tl.float32) * 1.4426950408889634
        total += 1.0
    slopes = tl.zeros([TILE_M], tl.float32)
    if ALIBI:
        slopes = tl.load(slopes_ptr + heads)
    result = tl.zeros([TILE_M, MAIN], tl.float32)
    rest = tl.zeros([TILE_M, max(REST, 1)], tl.float32)
    last = seen_until(tl.max(positions, 0), seq_len, WINDOW, BIDIRECTIONAL)
    last = held(last, part_of_context, CONTEXT_PARTS)
    first = first_seen(tl.min(positions, 0), WINDOW, CHUNKED) if WINDOW > 0 else 0
    first = held(first, part_of_context, CONTEXT_PARTS)
    table_ptr = block_table_ptr + sequence * block_table_stride
    if PART_KEYS > 0:
        for part in range(first // PART_KEYS, tl.cdiv(last, PART_KEYS)):
            part_best, part_total, part_result, part_rest = attend_keys(
                query, query_rest, positions, tl.full([TILE_M], -1.0e30, tl.float32), tl.zeros([TILE_M], tl.float32),
                tl.zeros([TILE_M, MAIN], tl.float32), tl.zeros([TILE_M, max(REST, 1)], tl.float32), cache_ptr,
                descriptor, table_ptr, value_offset, kv_head, tl.maximum(first, part * PART_KEYS),
                tl.minimum(last, (part + 1) * PART_KEYS), scale, softcap, WINDOW, CHUNKED, SOFTCAP, PLANES, KV_HEADS,
                DIM, MAIN, REST, BLOCK_SIZE, SHARING, TILE_N, part_of_context, CONTEXT_PARTS, slopes, ALIBI,
                BIDIRECTIONAL,
            )  # fmt: skip
            new_best = tl.maximum(best, part_best)
            shrink = tl.exp2(best - new_best)
            weight = tl.exp2(part_best - new_best)
            result = add_shrunk(result, shrink[:, None], part_result * weight[:, None])
            rest = add_shrunk(rest, shrink[:, None], part_rest * weight[:, None])
            total = add_shrunk(total, shrink, part_total * weight)
            best = new_best
    else:
        best, total, result, rest = attend_keys(
            query, query_rest, positions, best, total, result, rest, cache_ptr, descriptor, table_ptr, value_offset,
            kv_head, first, last, scale, softcap, WINDOW, CHUNKED, SOFTCAP, PLANES, KV_HEADS, DIM, MAIN, REST,
            BLOCK_SIZE, SHARING, TILE_N, part_of_context, CONTEXT_PARTS, slopes, ALIBI, BIDIRECTIONAL,
        )  # fmt: skip
    if LSE:
        lse_row = (first_row + queries) * (KV_HEADS * GROUP) + heads
        tl.store(lse_ptr + lse_row, log_sum(best, total), mask=present)
    total = tl.maximum(total, 1.0e-30)[:, None]
    store_columns(output_ptr, row * output_stride + heads * DIM, present, result / total, 0, MAIN, DIM)
    if REST > 0:
        store_columns(output_ptr, row * output_stride + heads * DIM, present, rest / total, MAIN, REST, DIM)


def paged_prefill(
    query: torch.Tensor,
    cache: torch.Tensor,
    output: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    tile_sequences: torch.Tensor,
    tile_starts: torch.Tensor,
    options: AttentionOptions,
    tiles: Tiles,
    part_keys: int = 0,
    part: ContextPart = ContextPart(),
    lse: torch.Tensor | None = None,
    descriptor: TensorDescriptor | None = None,
) -> None:
    """Fills the rows of `output` that the tiles cover.

    Args:
        query, output: [num_tokens, num_heads, head_dim]; heads contiguous, tokens at any stride.
        cache: [planes, num_blocks, block_size, num_kv_heads, head_dim], with the new tokens already written.
        block_table: int32 [num_seqs, blocks]; query_start_loc: int32 [num_seqs + 1]; seq_lens: int32 [num_seqs].
        tile_sequences, tile_starts: int32 [tiles]; a tile's rows are the heads of a group, one query after the other.
                Tiles of sequence -1 are padding.
            part_keys: attends in parts of this many keys; 0 means in one part.
            part: the part of each sequence that the cache holds.
        lse: see AttentionBackend.attend.
        descriptor: of the cache, see `block_descriptor`. None means tiles are read by address.
    """
    num_heads, dim = query.shape[1:]
    block_size, num_kv_heads = cache.shape[2:4]
    main, rest = column_tiles(dim)
    _prefill_kernel[(tile_sequences.shape[0], num_kv_heads)](
        query, in_bytes(cache), descriptor, output, block_table, query_start_loc, seq_lens, tile_sequences, tile_starts,
        options.scale, options.softcap or 1.0, options.sinks, options.slopes, lse, query.stride(0),
        output.stride(0), block_table.stride(0), (len(cache) - 1) * cache.stride(0), part.rank,
        WINDOW=options.sliding_window or 0, CHUNKED=options.chunked, SOFTCAP=options.softcap is not None,
        SINKS=options.sinks is not None, PLANES=len(cache), GROUP=num_heads // num_kv_heads, KV_HEADS=num_kv_heads,
        DIM=dim, MAIN=main, REST=rest, BLOCK_SIZE=block_size, SHARING=layers_sharing(cache),
        TILE_M=tiles.rows, TILE_N=tiles.keys, PART_KEYS=part_keys,
        BIDIRECTIONAL=options.bidirectional, LSE=lse is not None, CONTEXT_PARTS=part.size,
        ALIBI=options.slopes is not None,
        num_warps=tiles.warps, launch_pdl=begins_early(), num_stages=tiles.stages,
    )  # fmt: skip
