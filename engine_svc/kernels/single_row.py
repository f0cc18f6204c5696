"""The product of one or two rows with a matrix, as in decoding one sequence: as fast as the matrix can be read.

Tensor cores would be idle, and cuBLAS splits the inputs of small matrices into parts, which a second kernel adds. Here
each program has all inputs of some outputs, and starts reading the matrix before the row is ready. A second row has its
own programs next to those of the first, so that they find the matrix in the GPU's cache.

Work that is small beside reading the matrix is repeated in each program instead of taking a separate kernel: the norm
of the row, its activation, and adding the product to a sum.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from engine_svc.kernels.activation import NamedActivation, gated
from engine_svc.kernels.overlap import await_inputs, begins_early

_SHARED_BYTES = 16 << 20  # a second row finds matrices up to this size in the GPU's cache (50 MB on an H100)

PLAIN, NORM, GATED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


class MatrixTiles(NamedTuple):
    """The tile of the matrix that a program reads at a time, and how it is compiled."""

    outputs: int
    inputs: int
    warps: int


class Norm(NamedTuple):
    """An RMS norm before the product."""

    residual: torch.Tensor | None  # [rows, size], contiguous, added to the rows first
    weight: torch.Tensor  # [size]
    epsilon: float


@triton.jit
def _sum_of(input_ptr, residual_ptr, column, inside, RESIDUAL: tl.constexpr):
    """The row plus the residual, float32."""
    values = tl.load(input_ptr + column, mask=inside, other=0.0).to(tl.float32)
    if RESIDUAL:
        values += tl.load(residual_ptr + column, mask=inside, other=0.0).to(tl.float32)
    return values


@triton.jit
def norm_factor(
    input_ptr, residual_ptr, epsilon, SIZE: tl.constexpr, SIZE_PADDED: tl.constexpr, RESIDUAL: tl.constexpr
):  # fmt: skip
    """What an RMS norm multiplies the row with."""
    place = tl.arange(0, SIZE_PADDED)
    whole = _sum_of(input_ptr, residual_ptr, place, place < SIZE, RESIDUAL)
    return 1.0 / tl.sqrt(tl.sum(whole * whole, 0) / SIZE + epsilon)


@triton.jit
def row_values(
    input_ptr, residual_ptr, scales, place, inside, factor, slope, limit, INPUT: tl.constexpr, RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The row's values at some places, after what INPUT says: float32, rounded as by a separate kernel.

    Args:
        scales: the norm's weights at these places, for NORM.
    """
    if INPUT == GATED:
        gates = tl.load(input_ptr + place, mask=inside, other=0.0).to(tl.float32)
        values = tl.load(input_ptr + SIZE + place, mask=inside, other=0.0).to(tl.float32)
        values = gated(gates, values, slope, limit, ACTIVATION)
    else:
        values = _sum_of(input_ptr, residual_ptr, place, inside, RESIDUAL)
    if INPUT == NORM:
        values *= factor * scales.to(tl.float32)
    return values.to(input_ptr.dtype.element_ty).to(tl.float32)


@triton.jit
def store_result(
    result, bias_ptr, added_ptr, output_ptr, column, within, BIAS: tl.constexpr, TOTAL: tl.constexpr,
    ADDED: tl.constexpr,
):  # fmt: skip
    """Stores a tile of outputs, after adding a bias, what is there (TOTAL), and another row (ADDED)."""
    if BIAS:
        result += tl.load(bias_ptr + column, mask=within, other=0.0).to(tl.float32)
    if TOTAL:
        result += tl.load(output_ptr + column, mask=within, other=0.0).to(tl.float32)
        if ADDED:
            result += tl.load(added_ptr + column, mask=within, other=0.0).to(tl.float32)
    tl.store(output_ptr + column, result.to(output_ptr.dtype.element_ty), mask=within)


@triton.jit
def _single_row_kernel(
    input_ptr, residual_ptr, norm_ptr, weight_ptr, bias_ptr, added_ptr, output_ptr, epsilon, slope, limit, outputs,
    input_stride, weight_stride, INPUT: tl.constexpr, RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr,
    SIZE: tl.constexpr, SIZE_PADDED: tl.constexpr, BIAS: tl.constexpr, TOTAL: tl.constexpr, ADDED: tl.constexpr,
    TILE_N: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    """One program per row and tile of outputs. While one tile is multiplied, the next is being loaded.

    Args:
        INPUT: PLAIN takes the row unchanged, NORM normalizes it, GATED takes a row of gates followed by values.
        TOTAL: adds the product, and with ADDED another row, to the output.
    """
    row, column = tl.program_id(0), tl.program_id(1).to(tl.int64) * TILE_N + tl.arange(0, TILE_N)
    within = column < outputs
    k = tl.arange(0, TILE_K)
    begins = weight_ptr + column[:, None] * weight_stride + k[None, :]
    weight = tl.load(begins, mask=within[:, None] & (k < SIZE)[None, :], other=0.0)
    scales = k
    if INPUT == NORM:
        scales = tl.load(norm_ptr + k, mask=k < SIZE, other=0.0)
    await_inputs()
    input_ptr += row * input_stride
    if RESIDUAL:
        residual_ptr += row * SIZE
    if ADDED:
        added_ptr += row * outputs
    factor = 1.0
    if INPUT == NORM:
        factor = norm_factor(input_ptr, residual_ptr, epsilon, SIZE, SIZE_PADDED, RESIDUAL)
    sums = tl.zeros([TILE_N, TILE_K], tl.float32)
    for begin in range(0, SIZE, TILE_K):
        inside, coming = begin + k < SIZE, begin + TILE_K + k < SIZE
        following = tl.load(begins + begin + TILE_K, mask=within[:, None] & coming[None, :], other=0.0)
        values = row_values(
            input_ptr, residual_ptr, scales, begin + k, inside, factor, slope, limit, INPUT, RESIDUAL, ACTIVATION, SIZE
        )
        if INPUT == NORM:
            scales = tl.load(norm_ptr + begin + TILE_K + k, mask=coming, other=0.0)
        sums += weight.to(tl.float32) * values[None, :]
        weight = following
    store_result(
        tl.sum(sums, 1), bias_ptr, added_ptr, output_ptr + row * outputs, column, within, BIAS, TOTAL, ADDED
    )  # fmt: skip


def most_rows(weight: torch.Tensor) -> int:
    """Up to how many rows this kernel is best; cuBLAS computes products of more rows."""
    return 2 if weight.nbytes <= _SHARED_BYTES else 1


def single_row_tiles(size: int) -> MatrixTiles:
    """The tiles for an input size: the fastest that benchmarks/tiles.py tries on an H100, to within some percent."""
    return MatrixTiles(4, 1024, 2) if size <= 1024 else MatrixTiles(4, 2048, 8)


def single_row_product(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    wide: bool = False,
    norm: Norm | None = None,
    activation: NamedActivation | None = None,
    total: torch.Tensor | None = None,
    added: torch.Tensor | None = None,
    tiles: MatrixTiles | None = None,
) -> torch.Tensor:
    """
    Args:
        hidden: [rows, size] with any stride between rows; [rows, 2 * size] with an activation. Rows should be few, as
            each has its own programs.
        weight: [outputs, size]; each output's inputs are contiguous.
        bias: [outputs]
        wide: returns float32, else the dtype of `hidden`.
        norm: applied to the rows before the product.
        activation: applied to the rows' first halves, times the second halves, before the product.
        total: [rows, outputs], contiguous; the product, and `added` of the same shape, are added to it in place.
        tiles: None means those of single_row_tiles.

        Returns:
            [rows, outputs]: `total` if there is one.
    """
    rows, (outputs, size) = len(hidden), weight.shape
    tiles = tiles or single_row_tiles(size)
    output = total
    if output is None:
        output = hidden.new_empty((rows, outputs), dtype=torch.float32 if wide else hidden.dtype)
    residual, scales, epsilon = norm or (None, None, 0.0)
    before = NORM if norm is not None else PLAIN if activation is None else GATED
    activation = activation or NamedActivation("silu")
    _single_row_kernel[(rows, triton.cdiv(outputs, tiles.outputs))](
        hidden, residual, scales, weight, bias, added, output, epsilon, activation.slope, activation.limit, outputs,
        hidden.stride(0), weight.stride(0), INPUT=before.value, RESIDUAL=residual is not None,
        ACTIVATION=activation.kind, SIZE=size, SIZE_PADDED=triton.next_power_of_2(size), BIAS=bias is not None,
        TOTAL=total is not None, ADDED=added is not None, TILE_N=tiles.outputs, TILE_K=tiles.inputs,
        num_warps=tiles.warps, launch_pdl=begins_early(),
    )  # fmt: skip
    return output
