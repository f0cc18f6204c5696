"""Products of int8 rows with int8 weights (W8A8): one kernel quantizes rows of hidden states, another multiplies.

Sums are integers, so tile shapes and the order of summation do not change a row's result.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from engine_svc.kernels.matrix import place_of_tile
from engine_svc.kernels.overlap import await_inputs, begins_early

_FEW_ROWS, _MANY_ROWS = 64, 256
# 1.5 * 2^23 in float32: what is added to it is rounded to an integer, which is then in the lowest bits.
ROUNDING = tl.constexpr(12582912.0)
_BAND = 8  # tiles of rows that go through the weights side by side


@triton.jit
def int8_scale(values):
    """How a row is quantized to -127 … 127: its greatest absolute value becomes 127.

    Returns:
        What the code 1 stands for; the inverse of that; whether some values have no code, being infinity or NaN (0 or
        1).
    """
    is_finite = tl.abs(values) < float("inf")
    is_broken = 1 - tl.min(is_finite.to(tl.int32), 0)
    scale = tl.max(tl.abs(tl.where(is_finite, values, 0.0)), 0) / 127.0
    return scale, 1.0 / tl.where(scale > 0.0, scale, 1.0), is_broken


@triton.jit
def int8_codes(values, inverse):
    """The codes of a row's values, each plus ROUNDING; those of infinity and NaN are 0."""
    return tl.where(tl.abs(values) < float("inf"), values, 0.0) * inverse + ROUNDING


@triton.jit
def _quantize_kernel(
    input_ptr, code_ptr, scale_ptr, input_stride, SIZE: tl.constexpr, SIZE_PADDED: tl.constexpr
):  # fmt: skip
    """One program per row."""
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE_PADDED)
    inside = column < SIZE
    values = tl.load(input_ptr + row * input_stride + column, mask=inside, other=0.0).to(tl.float32)
    scale, inverse, is_broken = int8_scale(values)
    codes = int8_codes(values, inverse).to(tl.uint32, bitcast=True)
    tl.store(code_ptr + row * SIZE + column, codes.to(tl.int8), mask=inside)
    # A row with values that have no code gets NaN as its scale, and so as its result.
    tl.store(scale_ptr + row, tl.where(is_broken > 0, float("nan"), scale))


@triton.jit(do_not_specialize=["rows"])
def _multiply_kernel(
    code_ptr,
    scale_ptr,
    weight_ptr,
    weight_scale_ptr,
    bias_ptr,
    output_ptr,
    rows,
    outputs,
    size,
    BIAS: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    BAND: tl.constexpr,
):
    """One program per tile of rows and outputs."""
    await_inputs()
    row, column = place_of_tile(tl.program_id(0), rows, outputs, TILE_M, TILE_N, BAND)
    present = row < rows
    within = column < outputs
    sums = tl.zeros([TILE_N, TILE_M], tl.int32)  # outputs are more than rows, and the tensor cores' first operand
    for begin in range(0, size, TILE_K):
        k = begin + tl.arange(0, TILE_K)
        inside = k < size
        codes = tl.load(code_ptr + row[None, :] * size + k[:, None], mask=present[None, :] & inside[:, None], other=0)
        weight = tl.load(
            weight_ptr + column[:, None] * size + k[None, :], mask=within[:, None] & inside[None, :], other=0
        )
        sums = tl.dot(weight, codes, sums, out_dtype=tl.int32)
    scale = tl.load(scale_ptr + row, mask=present, other=0.0)
    weight_scale = tl.load(weight_scale_ptr + column, mask=within, other=0.0)
    result = sums.to(tl.float32) * scale[None, :] * weight_scale[:, None]
    if BIAS:
        result += tl.load(bias_ptr + column, mask=within, other=0.0).to(tl.float32)[:, None]
    place = row[None, :] * outputs + column[:, None]
    tl.store(output_ptr + place, result.to(output_ptr.dtype.element_ty), mask=present[None, :] & within[:, None])


def quantize_rows(hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[rows, size], the last dimension contiguous → int8 [rows, size], and the scales, float32 [rows]."""
    rows, size = hidden.shape
    codes = hidden.new_empty((rows, size), dtype=torch.int8)
    scale = hidden.new_empty(rows, dtype=torch.float32)
    _quantize_kernel[(rows,)](
        hidden, codes, scale, hidden.stride(0), SIZE=size, SIZE_PADDED=triton.next_power_of_2(size),
        num_warps=4 if size <= 4096 else 8, launch_pdl=begins_early(),
    )  # fmt: skip
    return codes, scale


class Int8Tiles(NamedTuple):
    """The tile that a program computes, and how the kernel is compiled."""

    rows: int
    outputs: int
    inputs: int
    warps: int
    stages: int


def int8_tiles(rows: int) -> Int8Tiles:
    """The tiles for a number of rows: about the fastest that benchmarks/tiles.py tries on an H100.

    Few rows are one tile, which reads the weights once, in many programs.
    """
    if rows <= _FEW_ROWS:
        return Int8Tiles(max(16, triton.next_power_of_2(rows)), 64, 256, 4, 5)
    return Int8Tiles(128, 64, 128, 8, 4) if rows <= _MANY_ROWS else Int8Tiles(128, 128, 128, 4, 3)


def int8_product(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    wide: bool,
    tiles: Int8Tiles | None = None,
) -> torch.Tensor:
    """Each row times the matrix.

    Args:
        hidden: [rows, size], the last dimension contiguous.
        weight: int8 [outputs, size], contiguous.
        weight_scale: float32 [outputs]
        bias: [outputs]
        wide: returns float32, else the dtype of `hidden`.
        tiles: None means those of `int8_tiles`.

    Returns:
        [rows, outputs]
    """
    (rows, size), outputs = hidden.shape, len(weight)
    codes, scale = quantize_rows(hidden)
    output = hidden.new_empty((rows, outputs), dtype=torch.float32 if wide else hidden.dtype)
    tile_m, tile_n, tile_k, warps, stages = tiles or int8_tiles(rows)
    _multiply_kernel[(triton.cdiv(rows, tile_m) * triton.cdiv(outputs, tile_n),)](
        codes, scale, weight, weight_scale, bias, output, rows, outputs, size, BIAS=bias is not None,
        TILE_M=tile_m, TILE_N=tile_n, TILE_K=tile_k, BAND=_BAND, num_warps=warps, launch_pdl=begins_early(),
        num_stages=stages,
    )  # fmt: skip
    return output
