"""What the attention kernels share: an online softmax over a range of keys, and how results of ranges combine.

Prefill and decode call the same code on tiles of the same shape, so they can be made to round identically.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from engine_svc.kernels.eight_bits import widen


@triton.jit
def first_seen(position, WINDOW: tl.constexpr, CHUNKED: tl.constexpr):
    """The first position in the window of a query at `position`; CHUNKED windows begin at multiples of their length."""
    if CHUNKED:
        return position // WINDOW * WINDOW
    return tl.maximum(position - WINDOW + 1, 0)


@triton.jit
def seen_until(position, end, WINDOW: tl.constexpr, BIDIRECTIONAL: tl.constexpr):
    """The end (exclusive) of the positions that a query at `position` sees, at most `end`."""
    if not BIDIRECTIONAL:
        return tl.minimum(position + 1, end)
    if WINDOW > 0:
        return tl.minimum(position + WINDOW, end)
    return position * 0 + end


@triton.jit
def held(end, part_of_context, CONTEXT_PARTS: tl.constexpr):
    """How many positions below `end` are in a cache that holds every CONTEXT_PARTS-th one from `part_of_context` on."""
    if CONTEXT_PARTS == 1:
        return end
    return (end + CONTEXT_PARTS - 1 - part_of_context) // CONTEXT_PARTS


@triton.jit
def load_columns(
    pointer, offsets, present, MASKED: tl.constexpr, FIRST: tl.constexpr, COUNT: tl.constexpr, DIM: tl.constexpr
):
    """Loads COUNT columns from FIRST on, of rows that begin at `offsets`: [rows, COUNT], 0 from column DIM on.

    Args:
        present: which rows to read if MASKED; the others are 0.
    """
    columns = FIRST + tl.arange(0, COUNT)
    pointers = pointer + offsets[:, None] + columns[None, :]
    if MASKED or FIRST + COUNT > DIM:
        return tl.load(pointers, mask=present[:, None] & (columns < DIM)[None, :], other=0.0)
    return tl.load(pointers)


@triton.jit
def store_columns(
    pointer, offsets, present, values, FIRST: tl.constexpr, COUNT: tl.constexpr, DIM: tl.constexpr
):  # fmt: skip
    """The counterpart of load_columns."""
    columns = FIRST + tl.arange(0, COUNT)
    mask = present[:, None] & (columns < DIM)[None, :]
    tl.store(pointer + offsets[:, None] + columns[None, :], values.to(pointer.dtype.element_ty), mask=mask)


@triton.jit
def _in_cache(
    first, keys, present, table_ptr, WHOLE: tl.constexpr, BLOCK_SIZE: tl.constexpr, SHARING: tl.constexpr,
    TILE_N: tl.constexpr,
):  # fmt: skip
    """(place of a tile's first key, meaningful if one block has the whole tile; places of all keys, int64 [TILE_N])"""
    at = first
    if WHOLE and BLOCK_SIZE % TILE_N == 0:
        at = tl.load(table_ptr + first // BLOCK_SIZE) * (BLOCK_SIZE * SHARING) + first % BLOCK_SIZE
        places = at.to(tl.int64) + tl.arange(0, TILE_N)
    else:
        if WHOLE:
            block = tl.load(table_ptr + keys // BLOCK_SIZE)
        else:
            block = tl.load(table_ptr + keys // BLOCK_SIZE, mask=present, other=0)
        places = block.to(tl.int64) * (BLOCK_SIZE * SHARING) + keys % BLOCK_SIZE
    return at, places


@triton.jit
def attend_keys(
    query, query_rest, positions, best, total, result, result_rest, cache_ptr, descriptor, table_ptr, value_offset,
    kv_head, first, last, scale, softcap, WINDOW: tl.constexpr, CHUNKED: tl.constexpr, SOFTCAP: tl.constexpr,
    PLANES: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, SHARING: tl.constexpr, TILE_N: tl.constexpr, part_of_context,
    CONTEXT_PARTS: tl.constexpr, slopes, ALIBI: tl.constexpr, BIDIRECTIONAL: tl.constexpr = False,
):  # fmt: skip
    """Continues the online softmax over the keys from `first` to `last` (exclusive): places in the cache, see `held`.

    Tiles begin at multiples of TILE_N, and a tile of which a row sees nothing leaves that row unchanged, bit for bit.
    So a row's result depends on its own position alone, not on the rows beside it. Tiles that all rows see completely
    run without masks and give the same result: a product and a sum that a mask may separate are written as one fused
    multiply-add, because the compiler would fuse them only without a mask, and so round differently.

    Args:
        query: [rows, MAIN], and query_rest: [rows, REST], the columns after them if there are any; both widths are
            powers of two, as `tl.dot` needs them. positions: [rows], of each query.
        best, total: [rows], the greatest score so far, as an exponent of two, and the sum of the weights; result and
            result_rest: the weighted sum of values, shaped as the query.
        descriptor: of the cache as [places, KV_HEADS * DIM], with which the GPU itself copies whole tiles; or None.
        table_ptr: the sequence's row of the block table.
        first: a multiple of TILE_N if there is no window.
        PLANES: 1 if the keys are also the values. SHARING: layers that share a block, see AttentionBackend.carve.
        slopes: [rows], of the rows' heads, with ALIBI: see AttentionOptions.
    """
    until = held(seen_until(positions, last * CONTEXT_PARTS, WINDOW, BIDIRECTIONAL), part_of_context, CONTEXT_PARTS)
    whole = first // TILE_N * TILE_N
    if WINDOW > 0:
        since = held(first_seen(positions, WINDOW, CHUNKED), part_of_context, CONTEXT_PARTS)
        whole = tl.minimum(tl.cdiv(tl.maximum(tl.max(since, 0), first), TILE_N) * TILE_N, last)
    bounds = (first // TILE_N * TILE_N, whole, tl.maximum(tl.min(until, 0) // TILE_N * TILE_N, whole), last)
    factor = (softcap if SOFTCAP else scale) * 1.4426950408889634  # for exponents of two
    slopes *= 1.4426950408889634
    for section in tl.static_range(0 if WINDOW > 0 else 1, 3):  # tiles cut by a window, whole tiles, tiles at the end
        for place in range(bounds[section], bounds[section + 1], TILE_N):
            keys = place + tl.arange(0, TILE_N)
            present = (keys >= first) & (keys < last)  # others may have written before the window, even NaN
            at, places = _in_cache(place, keys, present, table_ptr, section == 1, BLOCK_SIZE, SHARING, TILE_N)
            rows = (places * KV_HEADS + kv_head) * DIM
            if section == 1 and descriptor is not None:
                key = descriptor.load([at, kv_head * DIM])
            else:
                key = widen(load_columns(cache_ptr, rows, present, section != 1, 0, MAIN, DIM), query.dtype)
            scores = tl.dot(query, tl.trans(key), input_precision="ieee")
            if REST > 0:
                key_rest = widen(load_columns(cache_ptr, rows, present, section != 1, MAIN, REST, DIM), query.dtype)
                scores = tl.dot(query_rest, tl.trans(key_rest), scores, input_precision="ieee")
            if SOFTCAP:
                scores = 2.0 * tl.sigmoid(2.0 * scale / softcap * scores) - 1.0  # tanh
            if ALIBI:
                where = (keys if CONTEXT_PARTS == 1 else keys * CONTEXT_PARTS + part_of_context)[None, :]
                scores = tl.fma(tl.abs(positions[:, None] - where).to(tl.float32), -slopes[:, None], scores * factor)
            if section != 1:
                seen = keys[None, :] < until[:, None]
                if WINDOW > 0:
                    seen = seen & (keys[None, :] >= since[:, None])
                scores = tl.where(seen, scores, float("-inf"))
            most = tl.max(scores, axis=1)
            new_best = tl.maximum(best, most if ALIBI else most * factor)
            weights = tl.exp2(tl.fma(scores, 1.0 if ALIBI else factor, -new_best[:, None]))
            shrink = tl.exp2(best - new_best)
            total = tl.fma(total, shrink, tl.sum(weights, axis=1))
            weights = weights.to(query.dtype)
            value = key
            if PLANES > 1:
                if section == 1 and descriptor is not None:
                    values_at = at + (value_offset // (KV_HEADS * DIM)).to(tl.int32)
                    value = descriptor.load([values_at, kv_head * DIM])
                else:
                    value = load_columns(cache_ptr + value_offset, rows, present, section != 1, 0, MAIN, DIM)
                    value = widen(value, query.dtype)
            result = tl.dot(weights, value, result * shrink[:, None], input_precision="ieee")
            if REST > 0:
                value = key_rest
                if PLANES > 1:
                    value = load_columns(cache_ptr + value_offset, rows, present, section != 1, MAIN, REST, DIM)
                    value = widen(value, query.dtype)
                result_rest = tl.dot(weights, value, result_rest * shrink[:, None], input_precision="ieee")
            best = new_best
    return best, total, result, result_rest


@triton.jit
def log_sum(best, total):
    """The natural logarithm of a sum of weights: of total * 2**best. -inf if there are no weights."""
    found = best * 0.6931471805599453 + tl.log(tl.maximum(total, 1.0e-30))
    return tl.where(total > 0.0, found, float("-inf"))


@triton.jit
def add_shrunk(first, shrink, second):
    """first * shrink + second, rounded the same wherever it is compiled: as a fused multiply-add."""
    return tl.fma(first, shrink, second)


def block_descriptor(cache: torch.Tensor, keys: int) -> TensorDescriptor:
    """A tensor descriptor of a cache, for tiles of `keys` keys of one head.

    Args:
        cache: contiguous [planes, num_blocks, block_size, num_kv_heads, head_dim]
    """
    places, dim = cache[..., 0, 0].numel(), cache.shape[-1]
    return TensorDescriptor.from_tensor(cache.view(places, -1), [keys, dim])
