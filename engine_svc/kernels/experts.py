"""A mixture of experts as two grouped products: rows sorted by expert, one launch for all experts.

Rows are padded to whole tiles per expert, so that a tile belongs to one expert. The most tiles there can be follows
from the shapes alone, so nothing is copied to the host.

A single kernel sorts the rows: each expert's program counts the rows of all experts, and places its own rows after
those of the experts before it.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from engine_svc.kernels.overlap import await_inputs, begins_early
from engine_svc.kernels.tiles import has_room

TILE_M = 16
MANY_ROWS, MOST_ROWS = 64, 128
_COLUMNS = 1024
_CHUNK, _LARGE_CHUNK = 1024, 4096  # rows sorted at a time; with four and eight warps
_COPIED = 8  # a row of a matrix of 16 bits is a multiple of this many, if the GPU itself is to copy its tiles


@triton.jit(do_not_specialize=["num_rows"])
def _grouped_kernel(
    input_ptr,
    weight_ptr,
    descriptor,
    bias_ptr,
    output_ptr,
    row_ptr,
    expert_ptr,
    num_rows,
    outputs,
    size,
    divisor,
    BIAS: tl.constexpr,
    EVEN: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
):
    """One program per tile of rows and of outputs: output[row] = weight[expert] @ input[row // divisor] + bias[expert].

    Rows without an expert get 0. Programs of the same rows start one after the other, so that the rows and experts
    they read are still cached.

    Args:
        descriptor: of the weight as [experts * outputs, inputs], with which the GPU itself copies tiles; or None. A
            tile may go beyond its expert's outputs.
        EVEN: the inputs are a multiple of TILE_K.
    """
    await_inputs()
    tile = tl.program_id(1)
    expert = tl.load(expert_ptr + tile)
    row = tl.load(row_ptr + tile * TILE_M + tl.arange(0, TILE_M)).to(tl.int64)
    present = row < num_rows
    column = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    within = column < outputs
    place = output_ptr + row[:, None] * outputs + column[None, :]
    mask = present[:, None] & within[None, :]
    if expert < 0:
        tl.store(place, tl.zeros([TILE_M, TILE_N], output_ptr.dtype.element_ty), mask=mask)
        return
    weight_row = expert.to(tl.int64) * outputs + column
    sums = tl.zeros([TILE_M, TILE_N], tl.float32)
    for begin in range(0, size, TILE_K):
        k = begin + tl.arange(0, TILE_K)
        rows_inside, columns_inside = present[:, None], within[:, None]
        if not EVEN:
            rows_inside, columns_inside = rows_inside & (k < size)[None, :], columns_inside & (k < size)[None, :]
        values = tl.load(input_ptr + (row // divisor)[:, None] * size + k[None, :], mask=rows_inside, other=0.0)
        if descriptor is not None:
            weight = descriptor.load([expert * outputs + tl.program_id(0) * TILE_N, begin])
        else:
            weight = tl.load(weight_ptr + weight_row[:, None] * size + k[None, :], mask=columns_inside, other=0.0)
        sums += tl.dot(values, tl.trans(weight), input_precision="ieee")
    if BIAS:
        sums += tl.load(bias_ptr + weight_row, mask=within, other=0.0).to(tl.float32)[None, :]
    tl.store(place, sums.to(output_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_rows", "num_tiles"])
def _sort_kernel(
    id_ptr,
    row_ptr,
    expert_ptr,
    num_rows,
    num_tiles,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    TILE_M: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """One program per expert, and one for rows without an expert, whose tiles come last."""
    await_inputs()
    expert = tl.program_id(0)
    counts = tl.zeros([BINS], tl.int32)
    for begin in range(0, num_rows, CHUNK):
        counts += tl.histogram(_experts_of(id_ptr, begin, num_rows, EXPERTS, CHUNK), BINS)
    bins = tl.arange(0, BINS)
    padded = tl.where(bins <= EXPERTS, tl.cdiv(counts, TILE_M) * TILE_M, 0)
    start = tl.sum(tl.where(bins < expert, padded, 0), 0)
    end = start + tl.sum(tl.where(bins == expert, padded, 0), 0)
    if expert == EXPERTS:
        end = num_tiles * TILE_M
    for begin in range(start // TILE_M, end // TILE_M, CHUNK):
        tile = begin + tl.arange(0, CHUNK)
        tl.store(expert_ptr + tile, tl.where(expert < EXPERTS, expert, -1), mask=tile < end // TILE_M)
    place = start
    for begin in range(0, num_rows, CHUNK):
        own = (_experts_of(id_ptr, begin, num_rows, EXPERTS, CHUNK) == expert).to(tl.int32)
        tl.store(row_ptr + place + tl.cumsum(own, 0) - 1, begin + tl.arange(0, CHUNK), mask=own > 0)
        place += tl.sum(own, 0)
    for begin in range(place, end, CHUNK):
        gap = begin + tl.arange(0, CHUNK)
        tl.store(row_ptr + gap, tl.zeros([CHUNK], tl.int32) + num_rows, mask=gap < end)


@triton.jit
def _experts_of(id_ptr, begin, num_rows, EXPERTS: tl.constexpr, CHUNK: tl.constexpr):
    """The experts of CHUNK rows from `begin` on: EXPERTS for rows without one, EXPERTS + 1 past the last row."""
    row = begin + tl.arange(0, CHUNK)
    expert = tl.load(id_ptr + row, mask=row < num_rows, other=EXPERTS + 1).to(tl.int32)
    return tl.where(expert < 0, EXPERTS, expert)


class SortedRows(NamedTuple):
    """The rows that each tile computes."""

    row: torch.Tensor  # int32 [tiles * tile], the row at each place, or `num_rows` for a gap
    expert: torch.Tensor  # int32 [tiles], the expert of each tile, or -1 for none
    num_rows: int
    tile: int  # number of rows in a tile


class ProductTiles(NamedTuple):
    """The tile that a program multiplies at a time, and how it is compiled."""

    outputs: int
    inputs: int
    warps: int
    stages: int
    are_copied: bool = False  # whether the GPU itself copies tiles of weights, where it can


def product_tiles(rows: int, dtype: torch.dtype, *, roomy: bool = False) -> ProductTiles:
    """The tiles for a number of rows per tile: the fastest of those tried on an H100.

    Args:
        roomy: the GPU has much shared memory, see `has_room`.
    """
    if dtype == torch.float32:
        return ProductTiles(64, 32, 4, 3)
    if rows <= TILE_M:
        return ProductTiles(64, 128, 4, 4)
    if rows <= MANY_ROWS or not roomy:
        return ProductTiles(128, 64, 4, 3)
    return ProductTiles(256, 64, 8, 4, are_copied=True)


@functools.cache
def _copies_tiles(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@functools.cache
def _has_room(device: torch.device) -> bool:
    return device.type == "cuda" and has_room(torch.cuda.get_device_capability(device))


def tile_rows(rows: int, matrices: int = 1, most: int = MANY_ROWS) -> int:
    """How many rows a tile should have. Larger tiles read, and dequantize, each weight for more rows at once.

    Args:
        rows: number of rows in all.
        matrices: number of matrices that the rows are divided among.
        most: the most rows that a tile may have.
    """
    if rows >= 2 * MOST_ROWS * matrices:
        return most
    return MANY_ROWS if rows >= 2 * TILE_M * matrices else TILE_M


def sort_by_expert(expert_ids: torch.Tensor, num_experts: int, tile: int = TILE_M) -> SortedRows:
    """Sorts rows into tiles of one expert each.

    Args:
        expert_ids: int64 [tokens, chosen], contiguous; row t * chosen + c is the c-th choice of token t. -1 is none.
    """
    num_rows = expert_ids.numel()
    tiles = (num_rows + tile - 1) // tile + min(num_experts + 1, num_rows)
    rows = expert_ids.new_empty(tiles * tile, dtype=torch.int32)
    experts = expert_ids.new_empty(tiles, dtype=torch.int32)
    chunk, warps = (_LARGE_CHUNK, 8) if num_rows > _LARGE_CHUNK else (_CHUNK, 4)
    _sort_kernel[(num_experts + 1,)](
        expert_ids, rows, experts, num_rows, tiles, EXPERTS=num_experts,
        BINS=max(128, triton.next_power_of_2(num_experts + 2)), TILE_M=tile, CHUNK=chunk, num_warps=warps,
        launch_pdl=begins_early(),
    )  # fmt: skip
    return SortedRows(rows, experts, num_rows, tile)


def grouped_product(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    rows: SortedRows,
    divisor: int,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Each row times its own expert's matrix.

    Args:
        hidden: [rows / divisor, size], contiguous: row r of the product reads row r // divisor.
        weight: [experts, outputs, size], contiguous.
        bias: [experts, outputs], contiguous.

    Returns:
        [rows, outputs]; zero for rows without an expert.
    """
    outputs, size = weight.shape[1:]
    output = hidden.new_empty((rows.num_rows, outputs))
    tiles = product_tiles(rows.tile, hidden.dtype, roomy=_has_room(hidden.device))
    descriptor = None
    if tiles.are_copied and size % _COPIED == 0 and _copies_tiles(hidden.device):
        descriptor = TensorDescriptor.from_tensor(weight.flatten(0, 1), [tiles.outputs, tiles.inputs])
    _grouped_kernel[(triton.cdiv(outputs, tiles.outputs), len(rows.expert))](
        hidden, weight, descriptor, bias, output, rows.row, rows.expert, rows.num_rows, outputs, size, divisor,
        BIAS=bias is not None, EVEN=size % tiles.inputs == 0, TILE_M=rows.tile, TILE_N=tiles.outputs,
        TILE_K=tiles.inputs, num_warps=tiles.warps, launch_pdl=begins_early(), num_stages=tiles.stages,
    )  # fmt: skip
    return output


@triton.jit
def _add_kernel(result_ptr, weight_ptr, output_ptr, size, CHOSEN: tl.constexpr, COLUMNS: tl.constexpr):
    """One program per token and range of columns; the choices are added one after the other."""
    await_inputs()
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
    """The weighted sum of the results of each token's experts.

    Args:
        results: [tokens, chosen, size], contiguous.
        weights: float32 [tokens, chosen]

    Returns:
        [tokens, size]
    """
    tokens, chosen, size = results.shape
    output = results.new_empty((tokens, size))
    _add_kernel[(tokens, triton.cdiv(size, _COLUMNS))](
        results, weights.contiguous(), output, size, CHOSEN=chosen, COLUMNS=_COLUMNS, num_warps=4,
        launch_pdl=begins_early(),
    )  # fmt: skip
    return output
