"""Normalizes and rotates query and key heads: in place, or with keys and values written to the paged cache."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from engine_svc.kernels.cache_write import layers_sharing, place_of
from engine_svc.kernels.eight_bits import in_bytes, narrow
from engine_svc.kernels.overlap import await_inputs, begins_early

_VALUES = 512  # roughly how many values a program rotates, with one warp, which needs no barriers


class Slots(NamedTuple):
    """The cache and the slots in it to write keys and values to; see write_cache."""

    cache: torch.Tensor
    slot_mapping: torch.Tensor


@triton.jit
def _pairs(DIM_PADDED: tl.constexpr, HALF: tl.constexpr, INTERLEAVED: tl.constexpr):
    """For each column: whether it is the first of its pair, its partner's column, and the pair's number.

    Column c of the first half is rotated with column c + HALF or, if INTERLEAVED, with its neighbor. Columns past both
    halves are not rotated.
    """
    column = tl.arange(0, DIM_PADDED)
    if INTERLEAVED:
        is_first, partner, pair = column % 2 == 0, column ^ 1, column // 2
    else:
        is_first = column < HALF
        partner = tl.where(is_first, column + HALF, column - HALF)
        pair = tl.where(is_first, column, column - HALF)
    return is_first, partner, pair


@triton.jit
def _turned(
    starts, present, angle_ptr, norms, partner_norms, epsilon, DIM: tl.constexpr, DIM_PADDED: tl.constexpr,
    HALF: tl.constexpr, WITH_NORMS: tl.constexpr, INTERLEAVED: tl.constexpr,
):  # fmt: skip
    """The normalized and rotated heads that begin at `starts`, float32.

    Args:
        norms: with WITH_NORMS, norm weights of each head's columns; partner_norms: of the partner columns.
    """
    column = tl.arange(0, DIM_PADDED)
    is_first, partner_column, pair = _pairs(DIM_PADDED, HALF, INTERLEAVED)
    inside, turned = column < DIM, column < 2 * HALF
    own = tl.load(starts + column[None, :], mask=present & inside[None, :], other=0.0).to(tl.float32)
    partner = tl.load(starts + partner_column[None, :], mask=present & turned[None, :], other=0.0).to(tl.float32)
    if WITH_NORMS:
        factor = 1.0 / tl.sqrt(tl.sum(own * own, axis=1) / DIM + epsilon)
        own *= factor[:, None] * norms
        partner *= factor[:, None] * partner_norms
    cosine = tl.load(angle_ptr + pair, mask=turned, other=1.0).to(tl.float32)
    sine = tl.load(angle_ptr + pair + HALF, mask=turned, other=0.0).to(tl.float32)
    return own * cosine[None, :] + tl.where(is_first[None, :], -partner, partner) * sine[None, :]


@triton.jit
def _norms(query_norm_ptr, key_norm_ptr, columns, inside, is_key):
    """Norm weights of these columns for each head, by whether it is a key or a query: float32."""
    of_queries = tl.load(query_norm_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    of_keys = tl.load(key_norm_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    return tl.where(is_key, of_keys[None, :], of_queries[None, :])


@triton.jit
def _rotate_kernel(
    heads_ptr, table_ptr, query_norm_ptr, key_norm_ptr, key_cache_ptr, value_cache_ptr, slot_mapping_ptr, epsilon,
    token_stride, NUM_QUERY: tl.constexpr, NUM_KEY: tl.constexpr, CACHED: tl.constexpr, MOST: tl.constexpr,
    DIM: tl.constexpr, DIM_PADDED: tl.constexpr, HALF: tl.constexpr, WITH_NORMS: tl.constexpr,
    INTERLEAVED: tl.constexpr, ROWS: tl.constexpr, BLOCK_SIZE: tl.constexpr, SHARING: tl.constexpr,
):  # fmt: skip
    """One program per token and ROWS of its heads. With CACHED, value heads follow the query and key heads."""
    head = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[:, None]
    columns = tl.arange(0, DIM_PADDED)
    norms, partner_norms = 1.0, 1.0
    if WITH_NORMS:
        partner = _pairs(DIM_PADDED, HALF, INTERLEAVED)[1]
        norms = _norms(query_norm_ptr, key_norm_ptr, columns, columns < DIM, head >= NUM_QUERY)
        partner_norms = _norms(query_norm_ptr, key_norm_ptr, partner, columns < 2 * HALF, head >= NUM_QUERY)
    await_inputs()
    token = tl.program_id(0).to(tl.int64)
    column = columns[None, :]
    starts = heads_ptr + token * token_stride + head * DIM
    is_turned = head < NUM_QUERY + NUM_KEY
    wide = _turned(
        starts, is_turned, table_ptr + token * 2 * HALF, norms, partner_norms, epsilon, DIM, DIM_PADDED, HALF,
        WITH_NORMS, INTERLEAVED,
    )  # fmt: skip
    result = wide.to(heads_ptr.dtype.element_ty)
    stays = is_turned
    if CACHED:
        is_value = (head >= NUM_QUERY + NUM_KEY) & (head < NUM_QUERY + 2 * NUM_KEY)
        value = tl.load(starts + column, mask=is_value & (column < DIM), other=0.0)
        slot = tl.load(slot_mapping_ptr + token)
        place = (place_of(slot, BLOCK_SIZE, SHARING) * NUM_KEY + (head - NUM_QUERY) % NUM_KEY) * DIM + column
        goes = column < tl.where(slot >= 0, DIM, 0)
        element = key_cache_ptr.dtype.element_ty
        is_key = is_turned & (head >= NUM_QUERY)
        tl.store(key_cache_ptr + place, narrow(result, element, MOST), mask=goes & is_key)
        tl.store(value_cache_ptr + place, narrow(value, element, MOST), mask=goes & is_value)
        stays = head < NUM_QUERY
    tl.debug_barrier()  # every column is read before any is written
    tl.store(starts + column, result, mask=stays & (column < DIM))


def rotate(
    heads: torch.Tensor,
    table_rows: torch.Tensor,
    num_query: int,
    norms: tuple[torch.Tensor, torch.Tensor, float] | None,
    interleaved: bool,
    slots: Slots | None = None,
) -> None:
    """Applies the norms, if there are any, then rotates the first values of each head; in place.

    Args:
        heads: [tokens, query and key heads, head_dim]; each token's heads must be contiguous.
        table_rows: [tokens, 2, rotated values / 2], cosines and sines of the tokens' positions.
        norms: weights for queries and for keys, each [head_dim], and epsilon.
        interleaved: rotates pairs of neighboring values, not pairs from the two halves.
        slots: the cache slots to write keys and values to. Then the value heads follow the key heads in `heads`, and
            the keys in `heads` are not updated.
    """
    tokens, count, dim = heads.shape
    query_norm, key_norm, epsilon = norms or (None, None, 0.0)
    cached = (None, None, None) if slots is None else (*in_bytes(slots.cache), slots.slot_mapping)
    block_size, sharing = (1, 1) if slots is None else (slots.cache.shape[2], layers_sharing(slots.cache))
    padded = triton.next_power_of_2(dim)
    rows = min(triton.next_power_of_2(count), max(1, _VALUES // padded))
    _rotate_kernel[(tokens, triton.cdiv(count, rows))](
        heads, table_rows, query_norm, key_norm, *cached, epsilon, heads.stride(0), NUM_QUERY=num_query,
        NUM_KEY=count - num_query if slots is None else (count - num_query) // 2, CACHED=slots is not None,
        MOST=torch.finfo(slots.cache.dtype).max if slots and slots.cache.dtype != heads.dtype else 0.0, DIM=dim,
        DIM_PADDED=padded, HALF=table_rows.shape[-1], WITH_NORMS=norms is not None, INTERLEAVED=interleaved,
        ROWS=rows, BLOCK_SIZE=block_size, SHARING=sharing, num_warps=1, launch_pdl=begins_early(),
    )  # fmt: skip


@triton.jit
def _rotate_pairs_kernel(
    pairs_ptr, table_ptr, output_ptr, heads, token_stride, head_stride, output_token_stride, output_head_stride,
    HALF: tl.constexpr, HALF_PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One program per token and ROWS of its heads."""
    await_inputs()
    token = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) * ROWS + tl.arange(0, ROWS))[:, None]
    pair = tl.arange(0, HALF_PADDED)[None, :]
    inside = pair < HALF
    cosine = tl.load(table_ptr + token * 2 * HALF + pair, mask=inside, other=1.0).to(tl.float32)
    sine = tl.load(table_ptr + token * 2 * HALF + HALF + pair, mask=inside, other=0.0).to(tl.float32)
    inside = inside & (head < heads)
    starts = pairs_ptr + token * token_stride + head * head_stride
    first = tl.load(starts + 2 * pair, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(starts + 2 * pair + 1, mask=inside, other=0.0).to(tl.float32)
    target = output_ptr + token * output_token_stride + head * output_head_stride + pair
    element = output_ptr.dtype.element_ty
    tl.store(target, (first * cosine - second * sine).to(element), mask=inside)
    tl.store(target + HALF, (second * cosine + first * sine).to(element), mask=inside)


def rotate_pairs(pairs: torch.Tensor, table_rows: torch.Tensor, output: torch.Tensor) -> None:
    """See Ops.rotate_pairs; `output` must not overlap `pairs`.

    Args:
        table_rows: contiguous.
    """
    tokens, heads, size = pairs.shape
    padded = triton.next_power_of_2(size // 2)
    rows = min(triton.next_power_of_2(heads), max(1, _VALUES // (2 * padded)))
    _rotate_pairs_kernel[(tokens, triton.cdiv(heads, rows))](
        pairs, table_rows, output, heads, *pairs.stride()[:2], *output.stride()[:2], HALF=size // 2,
        HALF_PADDED=padded, ROWS=rows, num_warps=1, launch_pdl=begins_early(),
    )  # fmt: skip
