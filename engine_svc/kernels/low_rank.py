"""Low-rank adapters (LoRA): rows in tiles of one group each, times the two thin matrices of their group.

A row is summed in a fixed order over its own values and its group's matrices, whatever else is in the tile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine_svc.kernels.overlap import await_inputs, begins_early

_TILE_N = 64
_TILE_K = 64
_MOST_RANKS = 64  # per program


@triton.jit
def _shrink_kernel(
    input_ptr,
    weight_ptr,
    rank_ptr,
    row_ptr,
    group_ptr,
    sum_ptr,
    size,
    input_stride,
    sharing,
    rank,
    PARTS: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_R: tl.constexpr,
    TILE_K: tl.constexpr,
):
    """One program per tile of rows, part and range of its rank."""
    await_inputs()
    tile = tl.program_id(0)
    group = tl.load(group_ptr + tile)
    if group < 0:
        return
    part = tl.program_id(1)
    matrix = (group // sharing).to(tl.int64) * PARTS + part
    r = tl.program_id(2) * TILE_R + tl.arange(0, TILE_R)
    own = r < tl.load(rank_ptr + matrix)
    row = tl.load(row_ptr + tile * TILE_M + tl.arange(0, TILE_M)).to(tl.int64)
    present = row >= 0
    sums = tl.zeros([TILE_M, TILE_R], tl.float32)
    for begin in range(0, size, TILE_K):
        k = begin + tl.arange(0, TILE_K)
        inside = k < size
        values = tl.load(
            input_ptr + row[:, None] * input_stride + k[None, :], mask=present[:, None] & inside[None, :], other=0.0
        )
        weight = tl.load(
            weight_ptr + (matrix * rank + r[:, None]) * size + k[None, :],
            mask=own[:, None] & inside[None, :],
            other=0.0,
        )
        if values.dtype != weight.dtype:
            values, weight = values.to(tl.float32), weight.to(tl.float32)
        sums += tl.dot(values, tl.trans(weight), input_precision="ieee")
    place = (tile * TILE_M + tl.arange(0, TILE_M)[:, None]) * PARTS + part
    tl.store(sum_ptr + place * rank + r[None, :], sums, mask=present[:, None] & (r < rank)[None, :])


@triton.jit
def _expand_kernel(
    sum_ptr,
    weight_ptr,
    rank_ptr,
    start_ptr,
    row_ptr,
    group_ptr,
    output_ptr,
    outputs,
    output_stride,
    sharing,
    rank,
    PARTS: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_R: tl.constexpr,
):
    """One program per tile of rows, part and range of its outputs."""
    await_inputs()
    tile = tl.program_id(0)
    group = tl.load(group_ptr + tile)
    if group < 0:
        return
    part = tl.program_id(1)
    first = tl.load(start_ptr + part)
    column = first + tl.program_id(2) * TILE_N + tl.arange(0, TILE_N)
    within = column < tl.load(start_ptr + part + 1)
    matrix = (group // sharing).to(tl.int64)
    own = tl.load(rank_ptr + matrix * PARTS + part)
    if (own == 0) | (tl.max(within.to(tl.int32), 0) == 0):
        return
    row = tl.load(row_ptr + tile * TILE_M + tl.arange(0, TILE_M)).to(tl.int64)
    mask = (row >= 0)[:, None] & within[None, :]
    place = (tile * TILE_M + tl.arange(0, TILE_M)[:, None]) * PARTS + part
    added = tl.zeros([TILE_M, TILE_N], tl.float32)
    for begin in range(0, own, TILE_R):
        r = begin + tl.arange(0, TILE_R)
        present = (row >= 0)[:, None] & (r < own)[None, :]
        sums = tl.load(sum_ptr + place * rank + r[None, :], mask=present, other=0.0)
        weight = tl.load(
            weight_ptr + (matrix * rank + r[:, None]) * outputs + column[None, :],
            mask=(r < own)[:, None] & within[None, :],
            other=0.0,
        )
        added += tl.dot(sums, weight.to(tl.float32), input_precision="ieee")
    to = output_ptr + row[:, None] * output_stride + column[None, :]
    result = tl.load(to, mask=mask, other=0.0).to(tl.float32) + added
    tl.store(to, result.to(output_ptr.dtype.element_ty), mask=mask)


def ranks_at_once(rank: int) -> int:
    """How many ranks a program has: `tl.dot` needs at least 16."""
    return max(16, min(_MOST_RANKS, triton.next_power_of_2(rank)))


def shrink(
    hidden: torch.Tensor, matrices: torch.Tensor, ranks: torch.Tensor, rows: torch.Tensor, groups: torch.Tensor,
    sharing: int,
) -> torch.Tensor:  # fmt: skip
    """See Ops.shrink; rows and groups are those of the tiles."""
    parts, rank, size = matrices.shape[1:]
    sums = hidden.new_empty((*rows.shape, parts, rank), dtype=torch.float32)
    tile = ranks_at_once(rank)
    _shrink_kernel[(len(groups), parts, triton.cdiv(rank, tile))](
        hidden, matrices, ranks, rows, groups, sums, size, hidden.stride(0), sharing, rank, PARTS=parts,
        TILE_M=rows.shape[1], TILE_R=tile, TILE_K=_TILE_K, num_warps=4, launch_pdl=begins_early(),
    )  # fmt: skip
    return sums


def expand(
    sums: torch.Tensor, matrices: torch.Tensor, ranks: torch.Tensor, starts: torch.Tensor, rows: torch.Tensor,
    groups: torch.Tensor, output: torch.Tensor, sharing: int,
) -> None:  # fmt: skip
    """See Ops.expand; rows and groups are those of the tiles."""
    parts, rank = sums.shape[2:]
    outputs = matrices.shape[2]
    _expand_kernel[(len(groups), parts, triton.cdiv(outputs, _TILE_N))](
        sums, matrices, ranks, starts, rows, groups, output, outputs, output.stride(0), sharing, rank, PARTS=parts,
        TILE_M=rows.shape[1], TILE_N=_TILE_N, TILE_R=ranks_at_once(rank), num_warps=4, launch_pdl=begins_early(),
    )  # fmt: skip
