"""Norms of query and key heads and their rotation: in place, or of keys, with values, into the paged cache."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from engine_svc.kernels.eight_bits import in_bytes, narrow


class Slots(NamedTuple):
    """Where keys and values go; see write_cache."""

    cache: torch.Tensor
    slot_mapping: torch.Tensor


@triton.jit
def _turned(
    start, inside, angle_ptr, norm_ptr, epsilon, DIM: tl.constexpr, DIM_PADDED: tl.constexpr, HALF: tl.constexpr,
    WITH_NORMS: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """A head that begins at `start`: float32. Column c of the first half turns with column c + HALF, or with its
    neighbour; the columns behind both halves stay."""
    column = tl.arange(0, DIM_PADDED)
    if INTERLEAVED:
        is_first, partner_column, pair = column % 2 == 0, column ^ 1, column // 2
    else:
        is_first = column < HALF
        partner_column = tl.where(is_first, column + HALF, column - HALF)
        pair = tl.where(is_first, column, column - HALF)
    turned = column < 2 * HALF
    own = tl.load(start + column, mask=inside, other=0.0).to(tl.float32)
    partner = tl.load(start + partner_column, mask=turned, other=0.0).to(tl.float32)
    if WITH_NORMS:
        factor = 1.0 / tl.sqrt(tl.sum(own * own, axis=0) / DIM + epsilon)
        own *= factor * tl.load(norm_ptr + column, mask=inside, other=0.0).to(tl.float32)
        partner *= factor * tl.load(norm_ptr + partner_column, mask=turned, other=0.0).to(tl.float32)
    cosine = tl.load(angle_ptr + pair, mask=turned, other=1.0).to(tl.float32)
    sine = tl.load(angle_ptr + pair + HALF, mask=turned, other=0.0).to(tl.float32)
    return own * cosine + tl.where(is_first, -partner, partner) * sine


@triton.jit
def _rotate_kernel(
    heads_ptr,
    table_ptr,
    query_norm_ptr,
    key_norm_ptr,
    key_cache_ptr,
    value_cache_ptr,
    slot_mapping_ptr,
    epsilon,
    token_stride,
    NUM_QUERY: tl.constexpr,
    NUM_KEY: tl.constexpr,
    CACHED: tl.constexpr,
    MOST: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    HALF: tl.constexpr,
    WITH_NORMS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """One program per token and head, of which CACHED has those of values behind the others."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.arange(0, DIM_PADDED)
    inside = column < DIM
    start = heads_ptr + token * token_stride + head * DIM
    if head < NUM_QUERY + NUM_KEY:
        norm_ptr = query_norm_ptr if head < NUM_QUERY else key_norm_ptr
        wide = _turned(
            start, inside, table_ptr + token * 2 * HALF, norm_ptr, epsilon, DIM, DIM_PADDED, HALF, WITH_NORMS,
            INTERLEAVED,
        )  # fmt: skip
        result = wide.to(heads_ptr.dtype.element_ty)
    else:
        result = tl.load(start + column, mask=inside, other=0.0)
    stays = DIM  # so many columns
    if CACHED:
        stays = tl.where(head < NUM_QUERY, DIM, 0)
        slot = tl.load(slot_mapping_ptr + token)
        cache_ptr = key_cache_ptr if head < NUM_QUERY + NUM_KEY else value_cache_ptr
        place = (slot * NUM_KEY + (head - NUM_QUERY) % NUM_KEY) * DIM + column
        goes = tl.where((head >= NUM_QUERY) & (slot >= 0), DIM, 0)
        tl.store(cache_ptr + place, narrow(result, cache_ptr.dtype.element_ty, MOST), mask=column < goes)
    tl.debug_barrier()  # every column is read before any is written
    tl.store(start + column, result, mask=column < stays)


def rotate(
    heads: torch.Tensor,
    table_rows: torch.Tensor,
    num_query: int,
    norms: tuple[torch.Tensor, torch.Tensor, float] | None,
    interleaved: bool,
    slots: Slots | None = None,
) -> None:
    """Norms, if there are any, then the rotation of the first values; in place.

    Args:
        heads: [tokens, query and key heads, head_dim]; each token's heads must be contiguous.
        table_rows: [tokens, 2, rotated values / 2], cosines and sines of the tokens' positions.
        norms: weights of queries and of keys, each [head_dim], and epsilon.
        interleaved: of neighbours, not of halves.
        slots: get the keys, which are not in `heads` then, and the values, whose heads are behind those of the keys.
    """
    tokens, count, dim = heads.shape
    query_norm, key_norm, epsilon = norms or (None, None, 0.0)
    cached = (None, None, None) if slots is None else (*in_bytes(slots.cache), slots.slot_mapping)
    _rotate_kernel[(tokens, count)](
        heads, table_rows, query_norm, key_norm, *cached, epsilon, heads.stride(0), NUM_QUERY=num_query,
        NUM_KEY=count - num_query if slots is None else (count - num_query) // 2, CACHED=slots is not None,
        MOST=torch.finfo(slots.cache.dtype).max if slots and slots.cache.dtype != heads.dtype else 0.0, DIM=dim,
        DIM_PADDED=triton.next_power_of_2(dim), HALF=table_rows.shape[-1], WITH_NORMS=norms is not None,
        INTERLEAVED=interleaved, num_warps=1,
    )  # fmt: skip
