"""The product of one row with a matrix, as decoding one sequence has it: as fast as the matrix can be read.

Tensor cores would have nothing to do, and cuBLAS cuts the inputs of small matrices into parts, which a second kernel
adds. Here each program has all inputs of some outputs, and has begun to read the matrix before the row is there. Of a
second row each is done beside the first one's, so that it finds the matrix in the GPU's cache.

What is small beside the matrix is done by each program again, so that it takes no kernel of its own: the norm of the
row, its activation, and the sum that the product goes to.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from engine_svc.kernels.activation import NamedActivation, gated
from engine_svc.kernels.overlap import await_inputs, begins_early

_SHARED_BYTES = 16 << 20  # of a matrix that a second row finds in the GPU's cache (50 MB on an H100)

_PLAIN, _NORM, _GATED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


class MatrixTiles(NamedTuple):
    """What a program reads of the matrix at a time, and how it is compiled."""

    outputs: int
    inputs: int
    warps: int


class Norm(NamedTuple):
    """A root mean square norm before the product."""

    residual: torch.Tensor | None  # [rows, size], contiguous, added to the rows first
    weight: torch.Tensor  # [size]
    epsilon: float


@triton.jit
def _sum_of(input_ptr, residual_ptr, column, inside, RESIDUAL: tl.constexpr):
    """float32, of the row and the residual."""
    values = tl.load(input_ptr + column, mask=inside, other=0.0).to(tl.float32)
    if RESIDUAL:
        values += tl.load(residual_ptr + column, mask=inside, other=0.0).to(tl.float32)
    return values


@triton.jit
def _single_row_kernel(
    input_ptr, residual_ptr, norm_ptr, weight_ptr, bias_ptr, added_ptr, output_ptr, epsilon, slope, limit, outputs,
    input_stride, weight_stride, INPUT: tl.constexpr, RESIDUAL: tl.constexpr, KIND: tl.constexpr, SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr, BIAS: tl.constexpr, TOTAL: tl.constexpr, ADDED: tl.constexpr, TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
):  # fmt: skip
    """One program for a row and some outputs. While a tile is multiplied, the next one is on its way.

    Args:
        INPUT: of a row as it is, of its norm, or of gates and what they are for, one behind the other.
        TOTAL: the output gets the product added, and with ADDED another row.
    """
    row, column = tl.program_id(0), tl.program_id(1).to(tl.int64) * TILE_N + tl.arange(0, TILE_N)
    within = column < outputs
    k = tl.arange(0, TILE_K)
    begins = weight_ptr + column[:, None] * weight_stride + k[None, :]
    weight = tl.load(begins, mask=within[:, None] & (k < SIZE)[None, :], other=0.0)
    if INPUT == _NORM:
        scales = tl.load(norm_ptr + k, mask=k < SIZE, other=0.0)
    await_inputs()
    input_ptr += row * input_stride
    if RESIDUAL:
        residual_ptr += row * SIZE
    output_ptr += row * outputs
    factor = 1.0
    if INPUT == _NORM:
        place = tl.arange(0, SIZE_PADDED)
        whole = _sum_of(input_ptr, residual_ptr, place, place < SIZE, RESIDUAL)
        factor = 1.0 / tl.sqrt(tl.sum(whole * whole, 0) / SIZE + epsilon)
    sums = tl.zeros([TILE_N, TILE_K], tl.float32)
    for begin in range(0, SIZE, TILE_K):
        inside, coming = begin + k < SIZE, begin + TILE_K + k < SIZE
        following = tl.load(begins + begin + TILE_K, mask=within[:, None] & coming[None, :], other=0.0)
        if INPUT == _GATED:
            gates = tl.load(input_ptr + begin + k, mask=inside, other=0.0).to(tl.float32)
            values = tl.load(input_ptr + SIZE + begin + k, mask=inside, other=0.0).to(tl.float32)
            values = gated(gates, values, slope, limit, KIND)
        else:
            values = _sum_of(input_ptr, residual_ptr, begin + k, inside, RESIDUAL)
        if INPUT == _NORM:
            values *= factor * scales.to(tl.float32)
            scales = tl.load(norm_ptr + begin + TILE_K + k, mask=coming, other=0.0)
        values = values.to(input_ptr.dtype.element_ty).to(tl.float32)  # as a kernel of its own would leave them
        sums += weight.to(tl.float32) * values[None, :]
        weight = following
    result = tl.sum(sums, 1)
    if BIAS:
        result += tl.load(bias_ptr + column, mask=within, other=0.0).to(tl.float32)
    if TOTAL:
        result += tl.load(output_ptr + column, mask=within, other=0.0).to(tl.float32)
        if ADDED:
            result += tl.load(added_ptr + row * outputs + column, mask=within, other=0.0).to(tl.float32)
    tl.store(output_ptr + column, result.to(output_ptr.dtype.element_ty), mask=within)


def most_rows(weight: torch.Tensor) -> int:
    """Of how many rows at a time the product is best computed here: those of more are cuBLAS's."""
    return 2 if weight.nbytes <= _SHARED_BYTES else 1


def single_row_tiles(size: int) -> MatrixTiles:
    """The fastest of those that benchmarks/tiles.py tries, or within some percent of it, on an H100."""
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
        hidden: [rows, size], of any stride between rows; [rows, 2 * size] with an activation. Few: each has programs of
            its own.
        weight: [outputs, size]; each output's inputs are contiguous.
        bias: [outputs]
        wide: float32 comes out, else the type of `hidden`.
        norm: of the rows, before the product.
        activation: of the rows' first halves, times the second, before the product.
        total: [rows, outputs], contiguous, gets the product added, and what is `added`, of the same shape.
        tiles: None: those of single_row_tiles.

    Returns:
        [rows, outputs]: the total, if there is one.
    """
    rows, (outputs, size) = len(hidden), weight.shape
    tiles = tiles or single_row_tiles(size)
    output = total
    if output is None:
        output = hidden.new_empty((rows, outputs), dtype=torch.float32 if wide else hidden.dtype)
    residual, scales, epsilon = norm or (None, None, 0.0)
    before = _NORM if norm is not None else _PLAIN if activation is None else _GATED
    activation = activation or NamedActivation("silu")
    _single_row_kernel[(rows, triton.cdiv(outputs, tiles.outputs))](
        hidden, residual, scales, weight, bias, added, output, epsilon, activation.slope, activation.limit, outputs,
        hidden.stride(0), weight.stride(0), INPUT=before.value, RESIDUAL=residual is not None, KIND=activation.kind,
        SIZE=size, SIZE_PADDED=triton.next_power_of_2(size), BIAS=bias is not None, TOTAL=total is not None,
        ADDED=added is not None, TILE_N=tiles.outputs, TILE_K=tiles.inputs, num_warps=tiles.warps,
        launch_pdl=begins_early(),
    )  # fmt: skip
    return output
