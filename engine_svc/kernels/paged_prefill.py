"""Attention of several new tokens per sequence over the paged cache, with an online softmax.

The tiling is FlashAttention-2's (Dao 2023); keys and values are found through the block table as in PagedAttention
(Kwon et al. 2023).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine_svc.attention.base import AttentionOptions
from engine_svc.attention.context import ContextPart
from engine_svc.kernels.attend import add_weighted, attend_keys, first_seen, held, log_sum, seen_until
from engine_svc.kernels.eight_bits import in_bytes
from engine_svc.kernels.tiles import key_rows, query_rows


@triton.jit(
    do_not_specialize=["block_table_stride"], do_not_specialize_on_alignment=["tile_sequence_ptr", "tile_start_ptr"]
)
def _prefill_kernel(
    query_ptr, cache_ptr, output_ptr, block_table_ptr, query_start_ptr, seq_lens_ptr, tile_sequence_ptr,
    tile_start_ptr, scale, softcap, sinks_ptr, slopes_ptr, lse_ptr, query_stride, output_stride, block_table_stride,
    value_offset, part_of_context, WINDOW: tl.constexpr, CHUNKED: tl.constexpr, SOFTCAP: tl.constexpr,
    SINKS: tl.constexpr, GROUP: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr, PART_KEYS: tl.constexpr,
    BIDIRECTIONAL: tl.constexpr, LSE: tl.constexpr, CONTEXT_PARTS: tl.constexpr, ALIBI: tl.constexpr,
):  # fmt: skip
    """One program per tile of queries and head.

    With PART_KEYS, so many keys at a time come to a result of their own, and the results are added as paged_decode adds
    them; with 0 there is one result.
    """
    tile = tl.program_id(0)
    head = tl.program_id(1)
    sequence = tl.load(tile_sequence_ptr + tile)
    start = tl.load(tile_start_ptr + tile)  # first query of the tile, counted within its sequence
    first_row = tl.load(query_start_ptr + sequence)
    query_len = tl.load(query_start_ptr + sequence + 1) - first_row
    seq_len = tl.load(seq_lens_ptr + sequence)

    rows = start + tl.arange(0, TILE_M)
    positions = seq_len - query_len + rows
    columns = tl.arange(0, DIM_PADDED)
    in_dim = columns < DIM
    row = (first_row + rows).to(tl.int64)[:, None]
    column = head * DIM + columns[None, :]
    row_mask = (rows < query_len)[:, None] & in_dim[None, :]
    query = tl.load(query_ptr + row * query_stride + column, mask=row_mask, other=0.0)

    best = tl.full([TILE_M], -1.0e30, tl.float32)  # finite, so that a row that sees nothing yet stays a number
    total = tl.zeros([TILE_M], tl.float32)
    if SINKS:
        best = tl.zeros([TILE_M], tl.float32) + tl.load(sinks_ptr + head).to(tl.float32) * 1.4426950408889634
        total += 1.0
    slopes = tl.zeros([TILE_M], tl.float32)
    if ALIBI:
        slopes += tl.load(slopes_ptr + head)
    result = tl.zeros([TILE_M, DIM_PADDED], tl.float32)
    last = seen_until(seq_len - query_len + start + TILE_M - 1, seq_len, WINDOW, BIDIRECTIONAL)
    last = held(last, part_of_context, CONTEXT_PARTS)
    first = first_seen(seq_len - query_len + start, WINDOW, CHUNKED) if WINDOW > 0 else 0
    first = held(first, part_of_context, CONTEXT_PARTS)
    table_ptr = block_table_ptr + sequence * block_table_stride
    if PART_KEYS > 0:
        for part in range(first // PART_KEYS, tl.cdiv(last, PART_KEYS)):
            part_best, part_total, part_result = attend_keys(
                query, positions, tl.full([TILE_M], -1.0e30, tl.float32), tl.zeros([TILE_M], tl.float32),
                tl.zeros([TILE_M, DIM_PADDED], tl.float32), cache_ptr, table_ptr, value_offset, head // GROUP,
                tl.maximum(first, part * PART_KEYS), tl.minimum(last, (part + 1) * PART_KEYS), scale, softcap,
                WINDOW, CHUNKED, SOFTCAP, KV_HEADS, DIM, DIM_PADDED, BLOCK_SIZE, TILE_N, part_of_context,
                CONTEXT_PARTS, slopes, ALIBI, BIDIRECTIONAL,
            )  # fmt: skip
            new_best = tl.maximum(best, part_best)
            shrink = tl.exp2(best - new_best)
            weight = tl.exp2(part_best - new_best)
            result = add_weighted(result, shrink[:, None], part_result, weight[:, None])
            total = add_weighted(total, shrink, part_total, weight)
            best = new_best
    else:
        best, total, result = attend_keys(
            query, positions, best, total, result, cache_ptr, table_ptr, value_offset, head // GROUP, first, last,
            scale, softcap, WINDOW, CHUNKED, SOFTCAP, KV_HEADS, DIM, DIM_PADDED, BLOCK_SIZE, TILE_N, part_of_context,
            CONTEXT_PARTS, slopes, ALIBI, BIDIRECTIONAL,
        )  # fmt: skip
    if LSE:
        heads = tl.num_programs(1)
        tl.store(lse_ptr + (first_row + rows) * heads + head, log_sum(best, total), mask=rows < query_len)
    result = result / tl.maximum(total, 1.0e-30)[:, None]
    tl.store(output_ptr + row * output_stride + column, result.to(output_ptr.dtype.element_ty), mask=row_mask)


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
    part_keys: int = 0,
    part: ContextPart = ContextPart(),
    lse: torch.Tensor | None = None,
) -> None:
    """Fills the rows of `output` that the tiles cover.

    Args:
        query, output: [num_tokens, num_heads, head_dim]; heads contiguous, tokens at any stride.
        cache: [planes, num_blocks, block_size, num_kv_heads, head_dim], the new tokens written already.
        block_table: int32 [num_seqs, blocks]; query_start_loc: int32 [num_seqs + 1]; seq_lens: int32 [num_seqs].
        tile_sequences, tile_starts: int32 [tiles], of each tile of `query_rows` queries.
        part_keys: attends in parts of so many keys.
        part: of each sequence, that the cache holds.
        lse: see AttentionBackend.attend.
    """
    num_heads, dim = query.shape[1:]
    block_size, num_kv_heads = cache.shape[2:4]
    _prefill_kernel[(tile_sequences.shape[0], num_heads)](
        query, in_bytes(cache), output, block_table, query_start_loc, seq_lens, tile_sequences, tile_starts,
        options.scale, options.softcap or 1.0, options.sinks, options.slopes, lse, query.stride(0),
        output.stride(0), block_table.stride(0), (len(cache) - 1) * cache.stride(0), part.rank,
        WINDOW=options.sliding_window or 0, CHUNKED=options.chunked, SOFTCAP=options.softcap is not None,
        SINKS=options.sinks is not None, GROUP=num_heads // num_kv_heads, KV_HEADS=num_kv_heads,
        DIM=dim, DIM_PADDED=max(16, triton.next_power_of_2(dim)), BLOCK_SIZE=block_size,
        TILE_M=query_rows(dim), TILE_N=key_rows(dim, query.dtype), PART_KEYS=part_keys,
        BIDIRECTIONAL=options.bidirectional, LSE=lse is not None, CONTEXT_PARTS=part.size,
        ALIBI=options.slopes is not None, num_warps=4, num_stages=2,
    )  # fmt: skip
