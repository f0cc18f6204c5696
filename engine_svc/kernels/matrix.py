"""Matrix products whose rows do not depend on the number of rows, which libraries do not guarantee.

There is one tile shape, and one program sums over the inputs from first to last. So a row's result depends on the row
and the weight alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine_svc.kernels.overlap import await_inputs, begins_early

TILE_M = 64
TILE_N = 64
_TILE_K_BYTES = 128
_BAND = 8  # tiles of rows that go through the weights side by side: what one reads is in the cache for the others


@triton.jit
def place_of_tile(tile, rows, outputs, TILE_M: tl.constexpr, TILE_N: tl.constexpr, BAND: tl.constexpr):
    """Row and column indices of a tile, int64. BAND tiles of rows go through the weights side by side."""
    in_band = BAND * tl.cdiv(outputs, TILE_N)
    first = tile // in_band * BAND
    height = tl.minimum(tl.cdiv(rows, TILE_M) - first, BAND)
    row = (first + tile % in_band % height) * TILE_M + tl.arange(0, TILE_M).to(tl.int64)
    column = tile % in_band // height * TILE_N + tl.arange(0, TILE_N).to(tl.int64)
    return row, column


@triton.jit(do_not_specialize=["rows"])
def _product_kernel(
    input_ptr,
    weight_ptr,
    bias_ptr,
    output_ptr,
    rows,
    outputs,
    size,
    input_row_stride,
    input_matrix_stride,
    weight_matrix_stride,
    weight_output_stride,
    weight_input_stride,
    output_row_stride,
    BIAS: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
    BAND: tl.constexpr,
):
    """One program per matrix and tile of rows and outputs."""
    await_inputs()
    matrix = tl.program_id(1).to(tl.int64)
    row, column = place_of_tile(tl.program_id(0), rows, outputs, TILE_M, TILE_N, BAND)
    present = row < rows
    within = column < outputs
    input_ptr += matrix * input_matrix_stride
    weight_ptr += matrix * weight_matrix_stride
    sums = tl.zeros([TILE_M, TILE_N], tl.float32)
    for begin in range(0, size, TILE_K):
        k = begin + tl.arange(0, TILE_K)
        inside = k < size
        values = tl.load(
            input_ptr + row[:, None] * input_row_stride + k[None, :], mask=present[:, None] & inside[None, :], other=0.0
        )
        weight = tl.load(
            weight_ptr + column[None, :] * weight_output_stride + k[:, None] * weight_input_stride,
            mask=inside[:, None] & within[None, :],
            other=0.0,
        )
        sums += tl.dot(values, weight, input_precision="ieee")
    if BIAS:
        sums += tl.load(bias_ptr + column, mask=within, other=0.0).to(tl.float32)[None, :]
    place = row[:, None] * output_row_stride + (matrix * outputs + column)[None, :]
    tl.store(output_ptr + place, sums.to(output_ptr.dtype.element_ty), mask=present[:, None] & within[None, :])


def inner_tile(dtype: torch.dtype) -> int:
    """The number of inputs in a tile."""
    return _TILE_K_BYTES // dtype.itemsize


def product(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, wide: bool = False
) -> torch.Tensor:
    """Each row's vectors times the matrix of each.

    Args:
        hidden: [rows, matrices, size], the last dimension contiguous.
        weight: [matrices, outputs, size], of any strides.
        bias: [outputs]; only with a single matrix.
        wide: returns float32, else the dtype of `hidden`.

    Returns:
        [rows, matrices, outputs]
    """
    rows, matrices, size = hidden.shape
    outputs = weight.shape[1]
    output = hidden.new_empty((rows, matrices, outputs), dtype=torch.float32 if wide else hidden.dtype)
    tiles = triton.cdiv(rows, TILE_M) * triton.cdiv(outputs, TILE_N)
    _product_kernel[(tiles, matrices)](
        hidden, weight, bias, output, rows, outputs, size, hidden.stride(0), hidden.stride(1), *weight.stride(),
        output.stride(0), BIAS=bias is not None, TILE_M=TILE_M, TILE_N=TILE_N, TILE_K=inner_tile(hidden.dtype),
        BAND=_BAND, num_warps=4, launch_pdl=begins_early(), num_stages=3,
    )  # fmt: skip
    return output
