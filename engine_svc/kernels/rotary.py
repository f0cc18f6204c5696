"""Norms of query and key heads and their rotation, in place."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _rotate_kernel(
    heads_ptr,
    table_ptr,
    query_norm_ptr,
    key_norm_ptr,
    epsilon,
    token_stride,
    NUM_QUERY: tl.constexpr,
    DIM: tl.constexpr,
    DIM_PADDED: tl.constexpr,
    HALF: tl.constexpr,
    WITH_NORMS: tl.constexpr,
    INTERLEAVED: tl.constexpr,
):
    """One program per token and head. Column c of the first half turns with column c + HALF, or with its neighbour; the
    columns behind both halves stay."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    column = tl.arange(0, DIM_PADDED)
    inside = column < DIM
    start = heads_ptr + token * token_stride + head * DIM
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
        norm_ptr = query_norm_ptr if head < NUM_QUERY else key_norm_ptr
        own *= factor * tl.load(norm_ptr + column, mask=inside, other=0.0).to(tl.float32)
        partner *= factor * tl.load(norm_ptr + partner_column, mask=turned, other=0.0).to(tl.float32)
    angle = table_ptr + token * 2 * HALF + pair
    cosine = tl.load(angle, mask=turned, other=1.0).to(tl.float32)
    sine = tl.load(angle + HALF, mask=turned, other=0.0).to(tl.float32)
    result = own * cosine + tl.where(is_first, -partner, partner) * sine
    tl.debug_barrier()  # every column is read before any is written
    tl.store(start + column, result.to(heads_ptr.dtype.element_ty), mask=inside)


def rotate(
    heads: torch.Tensor,
    table_rows: torch.Tensor,
    num_query: int,
    query_norm: torch.Tensor | None,
    key_norm: torch.Tensor | None,
    epsilon: float,
    interleaved: bool,
) -> None:
    """Norms, if there are any, then the rotation of the first values; in place.

    Args:
        heads: [tokens, query and key heads, head_dim]; each token's heads must be contiguous.
        table_rows: [tokens, 2, rotated values / 2], cosines and sines of the tokens' positions.
        query_norm, key_norm: [head_dim]
        interleaved: of neighbours, not of halves.
    """
    tokens, count, dim = heads.shape
    _rotate_kernel[(tokens, count)](
        heads, table_rows, query_norm, key_norm, epsilon, heads.stride(0), NUM_QUERY=num_query, DIM=dim,
        DIM_PADDED=triton.next_power_of_2(dim), HALF=table_rows.shape[-1], WITH_NORMS=query_norm is not None,
        INTERLEAVED=interleaved, num_warps=1,
    )  # fmt: skip
