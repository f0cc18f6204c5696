"""What the attention kernels share: an online softmax over a range of keys, and what two ranges of them come to.

Prefill and decode call the same code on tiles of the same shape, so that they can be made to round alike.
"""

from __future__ import annotations

import triton
import triton.language as tl

from engine_svc.kernels.eight_bits import widen


@triton.jit
def first_seen(position, WINDOW: tl.constexpr, CHUNKED: tl.constexpr):
    """The first position in the window of a query at this one: CHUNKED ones begin at multiples of their length."""
    if CHUNKED:
        return position // WINDOW * WINDOW
    return tl.maximum(position - WINDOW + 1, 0)


@triton.jit
def seen_until(position, end, WINDOW: tl.constexpr, BIDIRECTIONAL: tl.constexpr):
    """The first position that a query at this one does not see any more, up to `end`."""
    if not BIDIRECTIONAL:
        return tl.minimum(position + 1, end)
    if WINDOW > 0:
        return tl.minimum(position + WINDOW, end)
    return position * 0 + end


@triton.jit
def held(end, part_of_context, CONTEXT_PARTS: tl.constexpr):
    """How many of the positions below `end` a cache holds that has every so manieth, from `part_of_context` on."""
    if CONTEXT_PARTS == 1:
        return end
    return (end + CONTEXT_PARTS - 1 - part_of_context) // CONTEXT_PARTS


@triton.jit
def attend_keys(
    query,
    positions,
    best,
    total,
    result,
    cache_ptr,
    table_ptr,
    value_offset,
    kv_head,
    first,
    last,
    scale,
    softcap,
    WINDOW: tl.constexpr,
    CHUNKED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_N: tl.constexpr,
    part_of_context,
    CONTEXT_PARTS: tl.constexpr,
    slopes,
    ALIBI: tl.constexpr,
    BIDIRECTIONAL: tl.constexpr = False,
):
    """Goes on over the keys from `first` to `last`, which is not among them: places in the cache, see `held`.

    Tiles begin at multiples of TILE_N, and one of which a row sees nothing leaves that row as it was, bit for bit: what
    a row comes to depends on its own position alone, not on the rows beside it.

    Args:
        query: [rows, DIM_PADDED]; positions: [rows], of each query.
        best, total: [rows], the greatest score so far, as a power of two, and the sum of the weights; result:
            [rows, DIM_PADDED], the weighted sum of values.
        table_ptr: the sequence's row of the block table.
        slopes: [rows], of their heads, with ALIBI: see AttentionOptions.
    """
    columns = tl.arange(0, DIM_PADDED)
    in_dim = columns < DIM
    for begin in range(first // TILE_N * TILE_N, last, TILE_N):
        keys = begin + tl.arange(0, TILE_N)
        present = (keys >= first) & (keys < last)  # others may have written before the window, not-a-number even
        block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=present, other=0)
        slot = block.to(tl.int64) * BLOCK_SIZE + keys % BLOCK_SIZE
        offset = (slot * KV_HEADS + kv_head)[:, None] * DIM + columns[None, :]
        mask = present[:, None] & in_dim[None, :]
        key = widen(tl.load(cache_ptr + offset, mask=mask, other=0.0), query.dtype)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        if SOFTCAP:
            scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)  # of the hyperbolic tangent
        where = (keys if CONTEXT_PARTS == 1 else keys * CONTEXT_PARTS + part_of_context)[None, :]
        if ALIBI:
            scores = tl.fma(tl.abs(positions[:, None] - where).to(tl.float32), -slopes[:, None], scores)
        scores *= 1.4426950408889634  # to powers of two
        seen = (where < seen_until(positions, last * CONTEXT_PARTS, WINDOW, BIDIRECTIONAL)[:, None]) & present[None, :]
        if WINDOW > 0:
            seen = seen & (where >= first_seen(positions, WINDOW, CHUNKED)[:, None])
        scores = tl.where(seen, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_best[:, None])
        shrink = tl.exp2(best - new_best)
        value = widen(tl.load(cache_ptr + value_offset + offset, mask=mask, other=0.0), query.dtype)
        result = result * shrink[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
        total = total * shrink + tl.sum(weights, axis=1)
        best = new_best
    return best, total, result


@triton.jit
def log_sum(best, total):
    """The natural logarithm of a sum of weights that are over the greatest score, a power of two; of none, -inf."""
    found = best * 0.6931471805599453 + tl.log(tl.maximum(total, 1.0e-30))
    return tl.where(total > 0.0, found, float("-inf"))


@triton.jit
def add_weighted(first, shrink, second, weight):
    """first * shrink + second * weight, rounded the same wherever it is compiled."""
    return tl.fma(second, weight, first * shrink)
