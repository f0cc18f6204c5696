"""Products with weights in 4-bit or 8-bit codes, dequantized tile by tile: one matrix, or one for each row's expert.

Only codes and scales of a weight are read. One program sums over the inputs from first to last, so with a constant
tile shape, a row's result depends on the row and the weight alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from engine_svc.kernels.eight_bits import widen
from engine_svc.kernels.experts import TILE_M, SortedRows
from engine_svc.kernels.overlap import await_inputs, begins_early

TILE_N = 64
TILE_K = 64
# How codes become numbers of a grid: minus a constant; as bytes of a floating-point type; looked up in a table.
WHOLE, AS_E4M3, AS_E5M2, LOOKED_UP = (tl.constexpr(kind) for kind in range(4))


@dataclass(frozen=True)
class PackedCodes:
    """A weight as the kernel reads it; the first dimension is experts, of size 1 for a matrix."""

    kind: int  # WHOLE, AS_E4M3, AS_E5M2 or LOOKED_UP
    zero: int  # for WHOLE, the code of 0
    has_nibbles: bool
    codes: torch.Tensor  # uint8 [experts, outputs, bytes]; 4-bit codes: two per byte, the first in the lower half
    scale: torch.Tensor  # float32 [experts, outputs, groups]
    offset: torch.Tensor | None  # same type and shape as scale
    order: torch.Tensor | None  # int64 [experts, inputs]
    table: torch.Tensor | None  # float32 [16 or 256], for LOOKED_UP
    group: int
    inputs: int

    @property
    def outputs(self) -> int:
        """The number of outputs of each matrix."""
        return self.codes.shape[1]

    @property
    def layout(self) -> str:
        """Describes the form of a matrix, apart from dtypes and shapes."""
        return f"codes {self.kind} {self.zero} by {self.group}"

    def held(self) -> list[torch.Tensor]:
        """All tensors it is made of, with matrices along the first dimension."""
        return [each for each in (self.codes, self.scale, self.offset, self.order) if each is not None]


@triton.jit
def _widen_codes(codes, table_ptr, KIND: tl.constexpr, ZERO: tl.constexpr):
    """The grid's numbers for codes, float32."""
    if KIND == WHOLE:
        found = codes.to(tl.float32) - ZERO
    elif KIND == AS_E4M3:
        found = widen(codes, tl.float32)
    elif KIND == AS_E5M2:
        found = (codes.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
    else:
        found = tl.load(table_ptr + codes.to(tl.int32))
    return found


@triton.jit
def _load_codes(start, begin, row_bytes, within, NIBBLES: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr):
    """Loads codes [TILE_N, TILE_K] from input `begin` on, of rows whose bytes begin at `start`."""
    if NIBBLES:
        byte = begin // 2 + tl.arange(0, TILE_K // 2)
        packed = tl.load(start[:, None] + byte[None, :], mask=within[:, None] & (byte < row_bytes)[None, :], other=0)
        codes = tl.reshape(tl.join(packed & 15, packed >> 4), (TILE_N, TILE_K))
    else:
        byte = begin + tl.arange(0, TILE_K)
        codes = tl.load(start[:, None] + byte[None, :], mask=within[:, None] & (byte < row_bytes)[None, :], other=0)
    return codes


@triton.jit(do_not_specialize=["num_rows"])
def _coded_kernel(
    input_ptr,
    code_ptr,
    scale_ptr,
    offset_ptr,
    order_ptr,
    table_ptr,
    bias_ptr,
    output_ptr,
    row_ptr,
    expert_ptr,
    num_rows,
    outputs,
    size,
    row_bytes,
    groups,
    divisor,
    input_stride,
    KIND: tl.constexpr,
    ZERO: tl.constexpr,
    NIBBLES: tl.constexpr,
    GROUP: tl.constexpr,
    OFFSET: tl.constexpr,
    ORDER: tl.constexpr,
    BIAS: tl.constexpr,
    SORTED: tl.constexpr,
    TILE_M: tl.constexpr,
    TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
):
    """One program per tile of rows and of outputs: output[row] = weight[expert] @ input[row // divisor] + bias[expert].

    With SORTED, each tile's rows and expert are given; else all rows go in order with one matrix.
    """
    await_inputs()
    tile = tl.program_id(0)
    if SORTED:
        expert = tl.load(expert_ptr + tile).to(tl.int64)
        if expert < 0:
            return
        row = tl.load(row_ptr + tile * TILE_M + tl.arange(0, TILE_M)).to(tl.int64)
    else:
        expert = tl.full([], 0, tl.int64)
        row = tile * TILE_M + tl.arange(0, TILE_M).to(tl.int64)
    present = row < num_rows
    column = tl.program_id(1) * TILE_N + tl.arange(0, TILE_N)
    within = column < outputs
    weight_row = expert * outputs + column
    sums = tl.zeros([TILE_M, TILE_N], tl.float32)
    for begin in range(0, size, TILE_K):
        k = begin + tl.arange(0, TILE_K)
        inside = k < size
        place = tl.load(order_ptr + expert * size + k, mask=inside, other=0) if ORDER else k
        values = tl.load(
            input_ptr + (row // divisor)[:, None] * input_stride + place[None, :],
            mask=present[:, None] & inside[None, :],
            other=0.0,
        )
        codes = _load_codes(code_ptr + weight_row * row_bytes, begin, row_bytes, within, NIBBLES, TILE_N, TILE_K)
        weight = _widen_codes(codes, table_ptr, KIND, ZERO)
        # If a tile is within one group, one scale for each output.
        if GROUP % TILE_K == 0:
            group = weight_row[:, None] * groups + begin // GROUP
            known = within[:, None]
        else:
            group = weight_row[:, None] * groups + (k // GROUP)[None, :]
            known = within[:, None] & inside[None, :]
        weight *= tl.load(scale_ptr + group, mask=known, other=0.0)
        if OFFSET:
            weight += tl.load(offset_ptr + group, mask=known, other=0.0)
        sums += tl.dot(values, tl.trans(weight.to(values.dtype)), input_precision="ieee")
    if BIAS:
        sums += tl.load(bias_ptr + weight_row, mask=within, other=0.0).to(tl.float32)[None, :]
    mask = present[:, None] & within[None, :]
    result = sums.to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + row[:, None] * outputs + column[None, :], result, mask=mask)


def coded_product(
    hidden: torch.Tensor, weight: PackedCodes, bias: torch.Tensor | None = None, wide: bool = False, tile: int = TILE_M
) -> torch.Tensor:
    """Each row times the matrix.

    Args:
        hidden: [rows, size], values of a row contiguous.
        bias: [outputs]
        wide: returns float32, else the dtype of `hidden`.
        tile: the number of rows in a tile.

    Returns:
        [rows, outputs]
    """
    output = hidden.new_empty((len(hidden), weight.outputs), dtype=torch.float32 if wide else hidden.dtype)
    _multiply(hidden, weight, bias, output, None, 1, tile)
    return output


def grouped_coded_product(
    hidden: torch.Tensor, weight: PackedCodes, rows: SortedRows, divisor: int, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Each row times its own expert's matrix; arguments as for grouped_product."""
    output = hidden.new_zeros((rows.num_rows, weight.outputs))
    _multiply(hidden, weight, bias, output, rows, divisor, rows.tile)
    return output


def _multiply(
    hidden: torch.Tensor,
    weight: PackedCodes,
    bias: torch.Tensor | None,
    output: torch.Tensor,
    rows: SortedRows | None,
    divisor: int,
    tile: int,
) -> None:
    count, outputs = output.shape
    row, expert = (None, None) if rows is None else (rows.row, rows.expert)
    tiles = triton.cdiv(count, tile) if expert is None else len(expert)
    groups = weight.scale.shape[-1]
    _coded_kernel[(tiles, triton.cdiv(outputs, TILE_N))](
        hidden, weight.codes, weight.scale, weight.offset, weight.order, weight.table, bias, output, row, expert,
        count, outputs, weight.inputs, weight.codes.shape[-1], groups, divisor, hidden.stride(0),
        KIND=weight.kind, ZERO=weight.zero, NIBBLES=weight.has_nibbles,
        GROUP=weight.group if groups > 1 else triton.cdiv(weight.inputs, TILE_K) * TILE_K,
        OFFSET=weight.offset is not None, ORDER=weight.order is not None, BIAS=bias is not None,
        SORTED=rows is not None, TILE_M=tile, TILE_N=TILE_N, TILE_K=TILE_K,
        num_warps=4, launch_pdl=begins_early(), num_stages=2,
    )  # fmt: skip
