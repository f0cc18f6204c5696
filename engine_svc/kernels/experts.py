"""A mixture of experts as two grouped products: rows sorted by expert, one launch for all experts.

Rows are padded to whole tiles per expert, so that a tile belongs to one expert; how many tiles there are at most
follows from the shapes alone, so nothing is copied to the host.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

TILE_M = 16
_TILE_N = 64
_TILE_K = 64
_COLUMNS = 1024


@triton.jit(do_not_specialize=["num_rows"])
def _grouped_kernel(
    input_ptr,
    weight_ptr,
    bias_ptr,
    output_ptr,
    row_ptr,
    expert_ptr,
    num_rows,
    outputs,
    size,
    divisor,
    BIAS: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
):
    """One program per tile of rows and of outputs: output[row] = weight[expert] @ input[row // divisor] + bias[expert],
    where there is a bias."""
    tile = tl.program_id(0)
    expert = tl.load(expert_ptr + tile)
    if expert < 0:
        return
    row = tl.load(row_ptr + tile * TILE_M + tl.arange(0, TILE_M)).to(tl.int64)
    present = row < num_rows
    column = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    within = column < outputs
    weight_row = expert.to(tl.int64) * outputs + column
    sums = tl.zeros([TILE_M, TILE_N], tl.float32)
    for begin in range(0, size, TILE_K):
        k = begin + tl.arange(0, TILE_K)
        inside = k < size
        values = tl.load(
            input_ptr + (row // divisor)[:, None] * size + k[None, :],
            mask=present[:, None] & inside[None, :],
            other=0.0,
        )
        weight = tl.load(
            weight_ptr + weight_row[:, None] * size + k[None, :], mask=within[:, None] & inside[None, :], other=0.0
        )
        sums += tl.dot(values, tl.trans(weight), input_precision="ieee")
    if BIAS:
        sums += tl.load(bias_ptr + weight_row, mask=within, other=0.0).to(tl.float32)[None, :]
    mask = present[:, None] & within[None, :]
    result = sums.to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + row[:, None] * outputs + column[None, :], result, mask=mask)


class SortedRows(NamedTuple):
    """Which rows each tile computes."""

    row: torch.Tensor  # int32 [tiles * TILE_M], the row at each place, or `num_rows` where there is none
    expert: torch.Tensor  # int32 [tiles], of each tile, or -1 where there is none
    num_rows: int


def sort_by_expert(expert_ids: torch.Tensor, num_experts: int) -> SortedRows:
    """Rows in tiles of one expert each.

    Args:
        expert_ids: int64 [tokens, chosen]; row t * chosen + c is the c-th choice of token t. -1 is none.
    """
    flat = torch.where(expert_ids >= 0, expert_ids, num_experts).flatten()
    num_rows, device = flat.numel(), flat.device
    tiles = (num_rows + TILE_M - 1) // TILE_M + min(num_experts + 1, num_rows)
    order = torch.argsort(flat, stable=True)
    sorted_ids = flat[order]
    counts = torch.zeros(num_experts + 1, dtype=torch.int64, device=device).scatter_add_(0, flat, torch.ones_like(flat))
    padded = (counts + TILE_M - 1) // TILE_M * TILE_M
    end = padded.cumsum(0)
    before = (counts.cumsum(0) - counts)[sorted_ids]
    place = (end - padded)[sorted_ids] + torch.arange(num_rows, device=device) - before
    rows = torch.full((tiles * TILE_M,), num_rows, dtype=torch.int32, device=device)
    rows[place] = order.to(torch.int32)
    first = torch.arange(tiles, device=device) * TILE_M
    experts = torch.searchsorted(end, first, right=True).to(torch.int32)
    return SortedRows(rows, torch.where(experts < num_experts, experts, -1), num_rows)


def grouped_product(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    rows: SortedRows,
    divisor: int,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Each row times its own expert's matrix.

    Args:
        hidden: [rows / divisor, size], contiguous: row r reads its row r // divisor.
        weight: [experts, outputs, size], contiguous.
        bias: [experts, outputs], contiguous.

    Returns:
        [rows, outputs]; zero where a row has no expert.
    """
    outputs, size = weight.shape[1:]
    output = hidden.new_zeros((rows.num_rows, outputs))
    _grouped_kernel[(len(rows.expert), triton.cdiv(outputs, _TILE_N))](
        hidden, weight, bias, output, rows.row, rows.expert, rows.num_rows, outputs, size, divisor,
        BIAS=bias is not None, TILE_M=TILE_M, TILE_N=_TILE_N, TILE_K=_TILE_K, num_warps=4,
    )  # fmt: skip
    return output


@triton.jit
def _add_kernel(result_ptr, weight_ptr, output_ptr, size, CHOSEN: tl.constexpr, COLUMNS: tl.constexpr):
    """One program per token and range of columns; the choices are added one after the other."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < size
    sums = tl.zeros([COLUMNS], tl.float32)
    for choice in range(CHOSEN):
        row = token * CHOSEN + choice
        result = tl.load(result_ptr + row * size + column, mask=inside, other=0.0).to(tl.float32)
        sums += result * tl.load(weight_ptr + row)
    tl.store(output_ptr + token * size + column, sums.to(output_ptr.dtype.element_ty), mask=inside)


def add_choices(results: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The weighted sum of what a token's experts give.

    Args:
        results: [tokens, chosen, size], contiguous.
        weights: float32 [tokens, chosen]

    Returns:
        [tokens, size]
    """
    tokens, chosen, size = results.shape
    output = results.new_empty((tokens, size))
    _add_kernel[(tokens, triton.cdiv(size, _COLUMNS))](
        results, weights.contiguous(), output, size, CHOSEN=chosen, COLUMNS=_COLUMNS, num_warps=4
    )
    return output
