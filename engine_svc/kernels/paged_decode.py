"""Attention of one or a few new tokens per sequence over the paged cache, split along the keys.

The keys are attended to in parts, and a second kernel combines the parts' results (Flash-Decoding, Dao et al. 2023).
If the part length is constant, a sequence's result does not depend on the batch around it.

The parts of all sequences are numbered consecutively, each sequence's from the first that it sees to its last. So the
memory for partial results depends on the sum of the contexts, however uneven their lengths are. There are as many
programs as run at a time, with an equal share of the parts each, which they find by reading the sequence lengths. So
one CUDA graph serves any contexts that its memory suffices for.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from engine_svc.attention.base import AttentionOptions
from engine_svc.attention.context import ContextPart
from engine_svc.kernels.attend import add_shrunk, attend_keys, first_seen, held, load_columns, log_sum, store_columns
from engine_svc.kernels.cache_write import layers_sharing
from engine_svc.kernels.eight_bits import in_bytes
from engine_svc.kernels.overlap import await_inputs, begins_early
from engine_svc.kernels.tiles import Tiles, column_tiles

PART = 256  # keys per part, for sequences with one or a few new tokens
_SEARCHED = tl.constexpr(128)  # how many sequences' lengths a program looks at together


@triton.jit
def _seen_parts(
    seq_len, query_len, part_of_context, WINDOW: tl.constexpr, CHUNKED: tl.constexpr, CONTEXT_PARTS: tl.constexpr,
    PART_KEYS: tl.constexpr,
):  # fmt: skip
    """(place of the first key that a new token sees, number of keys held, first part, number of parts)"""
    length = held(seq_len, part_of_context, CONTEXT_PARTS)
    visible = length * 0
    if WINDOW > 0:
        visible = held(first_seen(seq_len - query_len, WINDOW, CHUNKED), part_of_context, CONTEXT_PARTS)
    first = visible // PART_KEYS
    return visible, length, first, tl.where(visible < length, tl.cdiv(length, PART_KEYS) - first, 0)


@triton.jit
def _query_len(query_start_ptr, sequence):
    """How many new tokens a sequence has."""
    return tl.load(query_start_ptr + sequence + 1) - tl.load(query_start_ptr + sequence)


@triton.jit
def _parts_of(
    index, sequences_ptr, query_start_ptr, seq_lens_ptr, count, part_of_context, WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr, CONTEXT_PARTS: tl.constexpr, PART_KEYS: tl.constexpr,
):  # fmt: skip
    """How many parts the sequences at these indices have; 0 where there is no sequence."""
    sequence = tl.load(sequences_ptr + index, mask=index < count, other=-1)
    present, sequence = sequence >= 0, tl.maximum(sequence, 0)
    seq_len = tl.load(seq_lens_ptr + sequence, mask=present, other=1)
    query_len = 1
    if WINDOW > 0:
        query_len = _query_len(query_start_ptr, sequence)
    parts = _seen_parts(seq_len, query_len, part_of_context, WINDOW, CHUNKED, CONTEXT_PARTS, PART_KEYS)[3]
    return tl.where(present, parts, 0)


@triton.jit
def _find_part(
    piece, sequences_ptr, query_start_ptr, seq_lens_ptr, count, part_of_context, WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr, CONTEXT_PARTS: tl.constexpr, PART_KEYS: tl.constexpr,
):  # fmt: skip
    """(index of the sequence that part `piece` belongs to, parts of the sequences before it, parts of all sequences)"""
    index = 0
    start = 0
    passed = 0
    for begin in range(0, count, _SEARCHED):
        parts = _parts_of(
            begin + tl.arange(0, _SEARCHED), sequences_ptr, query_start_ptr, seq_lens_ptr, count, part_of_context,
            WINDOW, CHUNKED, CONTEXT_PARTS, PART_KEYS,
        )  # fmt: skip
        ends = passed + tl.cumsum(parts, 0)
        index += tl.sum((ends <= piece).to(tl.int32), 0)
        start = tl.maximum(start, tl.max(tl.where(ends <= piece, ends, 0), 0))
        passed += tl.sum(parts, 0)
    return index, start, passed


@triton.jit
def _sequence_at(
    index, sequences_ptr, query_start_ptr, seq_lens_ptr, part_of_context, WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr, CONTEXT_PARTS: tl.constexpr, PART_KEYS: tl.constexpr,
):  # fmt: skip
    """The sequence at an index: (sequence, its length, its new tokens, then the results of `_seen_parts`)."""
    found = tl.load(sequences_ptr + index)
    sequence = tl.maximum(found, 0)
    seq_len = tl.load(seq_lens_ptr + sequence)
    query_len = _query_len(query_start_ptr, sequence)
    visible, length, first, parts = _seen_parts(
        seq_len, query_len, part_of_context, WINDOW, CHUNKED, CONTEXT_PARTS, PART_KEYS
    )
    return sequence, seq_len, query_len, visible, length, first, tl.where(found >= 0, parts, 0)


@triton.jit(
    do_not_specialize=["count", "queries", "block_table_stride"], do_not_specialize_on_alignment=["sequences_ptr"]
)
def _decode_kernel(
    query_ptr, cache_ptr, descriptor, partial_ptr, best_ptr, total_ptr, block_table_ptr, query_start_ptr, seq_lens_ptr,
    sequences_ptr, slopes_ptr, scale, softcap, query_stride, block_table_stride, value_offset, count, queries,
    WINDOW: tl.constexpr, CHUNKED: tl.constexpr, SOFTCAP: tl.constexpr, PLANES: tl.constexpr, GROUP: tl.constexpr,
    ROWS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SHARING: tl.constexpr, PART_KEYS: tl.constexpr, TILE_N: tl.constexpr, part_of_context,
    CONTEXT_PARTS: tl.constexpr, ALIBI: tl.constexpr, BIDIRECTIONAL: tl.constexpr,
):  # fmt: skip
    """One program per range of parts and ROWS rows of a kv head: the heads of its group, one query after the other."""
    tiles = tl.num_programs(1) // KV_HEADS
    kv_head = tl.program_id(1) // tiles
    rows = tl.program_id(1) % tiles * ROWS + tl.arange(0, ROWS)
    queries_of, heads = rows // GROUP, kv_head * GROUP + rows % GROUP
    slopes = tl.zeros([ROWS], tl.float32)
    if ALIBI:
        slopes = tl.load(slopes_ptr + heads)
    program, programs = tl.program_id(0), tl.num_programs(0)
    index, start, pieces = _find_part(
        program, sequences_ptr, query_start_ptr, seq_lens_ptr, count, part_of_context, WINDOW, CHUNKED, CONTEXT_PARTS,
        PART_KEYS,
    )  # fmt: skip
    begin, end = program, tl.minimum(program + 1, pieces)
    if pieces > programs:  # each program has several consecutive parts
        each, more = pieces // programs, pieces % programs
        begin = program * each + tl.minimum(program, more)
        end = begin + each + (program < more).to(tl.int32)
        index, start, _ = _find_part(
            begin, sequences_ptr, query_start_ptr, seq_lens_ptr, count, part_of_context, WINDOW, CHUNKED,
            CONTEXT_PARTS, PART_KEYS,
        )  # fmt: skip
    await_inputs()
    for piece in range(begin, end):
        sequence, seq_len, query_len, visible, length, first_part, parts = _sequence_at(
            index, sequences_ptr, query_start_ptr, seq_lens_ptr, part_of_context, WINDOW, CHUNKED, CONTEXT_PARTS,
            PART_KEYS,
        )  # fmt: skip
        while piece >= start + parts:
            start += parts
            index += 1
            sequence, seq_len, query_len, visible, length, first_part, parts = _sequence_at(
                index, sequences_ptr, query_start_ptr, seq_lens_ptr, part_of_context, WINDOW, CHUNKED, CONTEXT_PARTS,
                PART_KEYS,
            )  # fmt: skip
        first = (first_part + piece - start) * PART_KEYS
        present = queries_of < query_len
        last = tl.where(tl.min(queries_of, 0) < query_len, tl.minimum(first + PART_KEYS, length), first)
        row = tl.load(query_start_ptr + sequence).to(tl.int64) + queries_of
        query = load_columns(query_ptr, row * query_stride + heads * DIM, present, True, 0, MAIN, DIM)
        query_rest = None
        if REST > 0:
            query_rest = load_columns(query_ptr, row * query_stride + heads * DIM, present, True, MAIN, REST, DIM)
        positions = tl.minimum(seq_len - query_len + queries_of, seq_len - 1)
        best, total, result, rest = attend_keys(
            query, query_rest, positions, tl.full([ROWS], -1.0e30, tl.float32), tl.zeros([ROWS], tl.float32),
            tl.zeros([ROWS, MAIN], tl.float32), tl.zeros([ROWS, max(REST, 1)], tl.float32), cache_ptr, descriptor,
            block_table_ptr + sequence * block_table_stride, value_offset, kv_head, tl.maximum(first, visible),
            last, scale, softcap, WINDOW, CHUNKED, SOFTCAP, PLANES, KV_HEADS, DIM,
            MAIN, REST, BLOCK_SIZE, SHARING, TILE_N, part_of_context, CONTEXT_PARTS, slopes, ALIBI, BIDIRECTIONAL,
        )  # fmt: skip
        out_row = (tl.cast(piece, tl.int64) * queries + queries_of) * (KV_HEADS * GROUP) + heads
        store_columns(partial_ptr, out_row * DIM, present, result, 0, MAIN, DIM)
        if REST > 0:
            store_columns(partial_ptr, out_row * DIM, present, rest, MAIN, REST, DIM)
        tl.store(best_ptr + out_row, best, mask=present)
        tl.store(total_ptr + out_row, total, mask=present)


@triton.jit(do_not_specialize=["queries"], do_not_specialize_on_alignment=["sequences_ptr"])
def _combine_kernel(
    partial_ptr,
    best_ptr,
    total_ptr,
    output_ptr,
    sinks_ptr,
    lse_ptr,
    query_start_ptr,
    seq_lens_ptr,
    sequences_ptr,
    output_stride,
    queries,
    part_of_context,
    WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    SINKS: tl.constexpr,
    LSE: tl.constexpr,
    CONTEXT_PARTS: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    PART_KEYS: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """One program per new token and query head: a softmax over the parts of its sequence, TOGETHER at a time."""
    index = tl.program_id(0) // queries
    query = tl.program_id(0) % queries
    head = tl.program_id(1)
    sequence, _, query_len, _, _, _, parts = _sequence_at(
        index, sequences_ptr, query_start_ptr, seq_lens_ptr, part_of_context, WINDOW, CHUNKED, CONTEXT_PARTS, PART_KEYS
    )
    columns = tl.arange(0, DIM_PADDED)
    in_dim = columns < DIM
    start = 0
    for begin in range(0, index, _SEARCHED):
        start += tl.sum(_parts_of(
            begin + tl.arange(0, _SEARCHED), sequences_ptr, query_start_ptr, seq_lens_ptr, index, part_of_context,
            WINDOW, CHUNKED, CONTEXT_PARTS, PART_KEYS,
        ), 0)  # fmt: skip
    await_inputs()
    if tl.load(sequences_ptr + index) < 0 or query >= query_len:
        return
    best = -1.0e30
    total = 0.0
    if SINKS:
        best = tl.load(sinks_ptr + head).to(tl.float32) * 1.4426950408889634
        total = 1.0
    result = tl.zeros([DIM_PADDED], tl.float32)
    for begin in range(0, parts, TOGETHER):
        place = begin + tl.arange(0, TOGETHER)
        present = place < parts
        rows = ((start + place).to(tl.int64) * queries + query) * HEADS + head
        part_best = tl.load(best_ptr + rows, mask=present, other=-1.0e30)
        part_total = tl.load(total_ptr + rows, mask=present, other=0.0)
        part_result = tl.load(
            partial_ptr + rows[:, None] * DIM + columns[None, :], mask=present[:, None] & in_dim[None, :], other=0.0
        )
        new_best = tl.maximum(best, tl.max(part_best, 0))
        shrink = tl.exp2(best - new_best)
        weight = tl.exp2(part_best - new_best)
        result = add_shrunk(result, shrink, tl.sum(part_result * weight[:, None], 0))
        total = add_shrunk(total, shrink, tl.sum(part_total * weight, 0))
        best = new_best
    row = tl.load(query_start_ptr + sequence).to(tl.int64) + query
    if LSE:
        tl.store(lse_ptr + row * HEADS + head, log_sum(best, total))
    result = (result / tl.maximum(total, 1.0e-30)).to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + row * output_stride + head * DIM + columns, result, mask=in_dim)


def parts_together(dim_padded: int) -> int:
    """How many parts are combined at a time: as many as fit in registers."""
    return max(4, min(32, 2048 // dim_padded))


def combine_warps(dim_padded: int) -> int:
    """The number of warps of a program that combines parts; a single warp needs no barriers."""
    return 1 if dim_padded <= 256 else 4


def most_parts(
    positions: int, sequences: int, part: ContextPart, part_keys: int, window: int | None = None, queries: int = 1
) -> int:
    """The most parts that `sequences` sequences with `positions` positions in all can have.

    With a window, only the positions within the windows of `queries` queries per sequence count.
    """
    within = sequences * (((window or 0) + queries - 1) // (part_keys * part.size) + 2)
    whole = positions // (part_keys * part.size) + sequences
    return min(whole, within) if window else whole


def paged_decode(
    query: torch.Tensor,
    cache: torch.Tensor,
    output: torch.Tensor,
    block_table: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    sequences: torch.Tensor,
    capacity: int,
    programs: int,
    options: AttentionOptions,
    tiles: Tiles,
    part_keys: int,
    queries: int = 1,
    part: ContextPart = ContextPart(),
    lse: torch.Tensor | None = None,
    descriptor: TensorDescriptor | None = None,
    *,
    in_turn: bool = False,
) -> None:
    """Fills the rows of `output` that belong to `sequences`.

    Args:
        query, output: [num_tokens, num_heads, head_dim]; heads contiguous, tokens at any stride.
        cache: [planes, num_blocks, block_size, num_kv_heads, head_dim], with the new tokens already written.
        block_table: int32 [num_seqs, blocks]; query_start_loc: int32 [num_seqs + 1]; seq_lens: int32 [num_seqs].
        sequences: int32 [decoding]; -1 for padding.
        capacity: at least the number of parts of all sequences together; see `most_parts`.
        programs: roughly how many run at a time; the result does not depend on it.
        tiles: with the tiles and part length of paged_prefill, and `in_turn`, both kernels round identically.
        part_keys: keys per part.
        queries: the most new tokens that a sequence has.
        part: the part of each sequence that the cache holds.
        lse: see AttentionBackend.attend.
        descriptor: see `paged_prefill`.
        in_turn: combines one part after the other, not several at a time.
    """
    num_heads, dim = query.shape[1:]
    block_size, num_kv_heads = cache.shape[2:4]
    group, count = num_heads // num_kv_heads, sequences.shape[0]
    partial = torch.empty((capacity * queries, num_heads, dim), dtype=torch.float32, device=query.device)
    best = torch.empty((capacity * queries, num_heads), dtype=torch.float32, device=query.device)
    total = torch.empty_like(best)
    window, (main, rest) = options.sliding_window or 0, column_tiles(dim)
    head_tiles = num_kv_heads * triton.cdiv(group * queries, tiles.rows)
    _decode_kernel[(min(capacity, triton.cdiv(programs, head_tiles)), head_tiles)](
        query, in_bytes(cache), descriptor, partial, best, total, block_table, query_start_loc, seq_lens, sequences,
        options.slopes, options.scale, options.softcap or 1.0, query.stride(0), block_table.stride(0),
        (len(cache) - 1) * cache.stride(0), count, queries,
        WINDOW=window, CHUNKED=options.chunked, SOFTCAP=options.softcap is not None,
        PLANES=len(cache), GROUP=group, ROWS=tiles.rows, KV_HEADS=num_kv_heads,
        DIM=dim, MAIN=main, REST=rest, BLOCK_SIZE=block_size, SHARING=layers_sharing(cache), PART_KEYS=part_keys,
        TILE_N=tiles.keys, part_of_context=part.rank, CONTEXT_PARTS=part.size,
        ALIBI=options.slopes is not None, BIDIRECTIONAL=options.bidirectional,
        num_warps=tiles.warps, launch_pdl=begins_early(),
        num_stages=tiles.stages,
    )  # fmt: skip
    dim_padded = triton.next_power_of_2(dim)
    _combine_kernel[(count * queries, num_heads)](
        partial, best, total, output, options.sinks, lse, query_start_loc, seq_lens, sequences, output.stride(0),
        queries, part.rank,
        WINDOW=window, CHUNKED=options.chunked, SINKS=options.sinks is not None, LSE=lse is not None,
        CONTEXT_PARTS=part.size, HEADS=num_heads, DIM=dim, DIM_PADDED=dim_padded, PART_KEYS=part_keys,
        TOGETHER=1 if in_turn else parts_together(dim_padded),
        num_warps=combine_warps(dim_padded), launch_pdl=begins_early(),
    )  # fmt: skip
