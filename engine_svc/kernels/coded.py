"""Products with weights in 4-bit or 8-bit codes, dequantized tile by tile: one matrix, or one for each row's expert.

Only codes and scales of a weight are read. One program sums over the inputs from first to last, so with a constant
tile shape, a row's result depends on the row and the weight alone. For very many rows, a matrix is dequantized once, as
each tile of rows would dequantize it again.

Where there are fewer tiles of outputs than a GPU runs programs, inputs are split among programs too (split-K), and a
second kernel adds their sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from engine_svc.kernels.eight_bits import widen
from engine_svc.kernels.experts import TILE_M, SortedRows
from engine_svc.kernels.overlap import await_inputs, begins_early
from engine_svc.kernels.tiles import multiprocessors

FEW_ROWS = 64  # the most rows of a tile; a matrix is dequantized for more rows than that
_PROGRAMS_EACH = 4  # of a multiprocessor, which hide each other's latencies
_LEAST_PART = 256  # inputs
_COLUMNS = 256  # values that a program adds
_WIDE_TILE = (16, 256)  # outputs and inputs of a tile that is dequantized
# How codes become numbers of a grid: minus a constant; as bits of a floating-point type; looked up in a table.
WHOLE, AS_E4M3, AS_E5M2, AS_E2M1, LOOKED_UP = (tl.constexpr(kind) for kind in range(5))


@dataclass(frozen=True)
class PackedCodes:
    """A weight as the kernel reads it; the first dimension is experts, of size 1 for a matrix."""

    kind: int  # WHOLE, AS_E4M3, AS_E5M2, AS_E2M1 or LOOKED_UP
    zero: int  # for WHOLE, the code of 0
    bits: int  # 4 or 8
    codes: torch.Tensor  # uint8 [experts, outputs, bytes]; 4-bit codes: two per byte, the first in the lower half
    scale: torch.Tensor  # float32 [experts, outputs, groups]
    offset: torch.Tensor | None  # same type and shape as scale
    order: torch.Tensor | None  # int64 [experts, inputs]
    table: torch.Tensor | None  # float32 [16 or 256], for LOOKED_UP
    group: int
    inputs: int
    takes_int8: bool = False  # codes are of type int8, and inputs are quantized to int8 too

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
def widen_codes(codes, table_ptr, KIND: tl.constexpr, ZERO: tl.constexpr):
    """The grid's numbers for codes, float32."""
    if KIND == WHOLE:  # behind the exponent of 2^23, which is faster than a conversion
        found = (codes.to(tl.uint32) | 0x4B000000).to(tl.float32, bitcast=True) - (8388608.0 + ZERO)
    elif KIND == AS_E4M3:
        if tl.target_info.cuda_capability_geq(8, 9):
            found = codes.to(tl.float8e4nv, bitcast=True).to(tl.float32)
        else:
            found = widen(codes, tl.float32)
    elif KIND == AS_E5M2:
        found = (codes.to(tl.uint16) << 8).to(tl.float16, bitcast=True).to(tl.float32)
    elif KIND == AS_E2M1:  # exponent and mantissa where a float has them, which is so many powers of two too small
        bits = codes.to(tl.uint32)
        bits = ((bits << 28) & 0x80000000) | ((bits & 7) << 22)
        found = bits.to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2^126
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


@triton.jit
def load_groups(
    pointer, line, begin, within, groups, GROUP: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr
):  # fmt: skip
    """Scales or offsets of a tile's weights from input `begin` on: [TILE_N, TILE_K], or 1 for each output if all are in
    one group. Those past the last group are 0."""
    if GROUP % TILE_K == 0:
        found = tl.load(pointer + line[:, None] * groups + begin // GROUP, mask=within[:, None], other=0.0)
    else:
        if TILE_K % GROUP == 0:
            group = begin // GROUP + tl.arange(0, TILE_K // GROUP)
        else:
            group = (begin + tl.arange(0, TILE_K)) // GROUP
        mask = within[:, None] & (group < groups)[None, :]
        found = tl.load(pointer + line[:, None] * groups + group[None, :], mask=mask, other=0.0)
        if TILE_K % GROUP == 0:
            spread = tl.broadcast_to(found[:, :, None], (TILE_N, TILE_K // GROUP, GROUP))
            found = tl.reshape(spread, (TILE_N, TILE_K))
    return found


@triton.jit
def _load_weights(
    code_ptr, scale_ptr, offset_ptr, table_ptr, line, begin, within, row_bytes, groups, KIND: tl.constexpr,
    ZERO: tl.constexpr, NIBBLES: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr, TILE_N: tl.constexpr,
    TILE_K: tl.constexpr,
):  # fmt: skip
    """A tile of dequantized weights, float32 [TILE_N, TILE_K]."""
    codes = _load_codes(code_ptr + line * row_bytes, begin, row_bytes, within, NIBBLES, TILE_N, TILE_K)
    weights = widen_codes(codes, table_ptr, KIND, ZERO)
    weights *= load_groups(scale_ptr, line, begin, within, groups, GROUP, TILE_N, TILE_K)
    if OFFSET:
        weights += load_groups(offset_ptr, line, begin, within, groups, GROUP, TILE_N, TILE_K)
    return weights


@triton.jit
def _wide_kernel(
    code_ptr, scale_ptr, offset_ptr, order_ptr, table_ptr, output_ptr, outputs, size, row_bytes, groups,
    KIND: tl.constexpr, ZERO: tl.constexpr, NIBBLES: tl.constexpr, GROUP: tl.constexpr, OFFSET: tl.constexpr,
    ORDER: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr,
):  # fmt: skip
    """One program per tile of all matrices' outputs, which it dequantizes."""
    await_inputs()
    line = tl.program_id(0).to(tl.int64) * TILE_N + tl.arange(0, TILE_N)
    begin = tl.program_id(1) * TILE_K
    k = begin + tl.arange(0, TILE_K)
    within, inside = line < outputs, k < size
    weights = _load_weights(
        code_ptr, scale_ptr, offset_ptr, table_ptr, line, begin, within, row_bytes, groups, KIND, ZERO, NIBBLES,
        GROUP, OFFSET, TILE_N, TILE_K,
    )  # fmt: skip
    place = tl.load(order_ptr + k, mask=inside, other=0) if ORDER else k
    mask = within[:, None] & inside[None, :]
    tl.store(output_ptr + line[:, None] * size + place[None, :], weights.to(output_ptr.dtype.element_ty), mask=mask)


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

    With SORTED, each tile's rows and expert are given; else all rows go in order with one matrix. The third axis of the
    grid are parts of the inputs, whose sums are stored one after the other.
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
    # Weights are the first operand, which tensor cores take from registers, where they are dequantized.
    sums = tl.zeros([TILE_N, TILE_M], tl.float32)
    each = tl.cdiv(size, TILE_K * tl.num_programs(2)) * TILE_K
    first = tl.program_id(2) * each
    output_ptr += tl.program_id(2).to(tl.int64) * num_rows * outputs
    for begin in range(first, tl.minimum(first + each, size), TILE_K):
        k = begin + tl.arange(0, TILE_K)
        inside = k < size
        place = tl.load(order_ptr + expert * size + k, mask=inside, other=0) if ORDER else k
        values = tl.load(
            input_ptr + (row // divisor)[None, :] * input_stride + place[:, None],
            mask=present[None, :] & inside[:, None],
            other=0.0,
        )
        weights = _load_weights(
            code_ptr, scale_ptr, offset_ptr, table_ptr, weight_row, begin, within, row_bytes, groups, KIND, ZERO,
            NIBBLES, GROUP, OFFSET, TILE_N, TILE_K,
        )  # fmt: skip
        sums += tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    if BIAS:
        sums += tl.load(bias_ptr + weight_row, mask=within, other=0.0).to(tl.float32)[:, None]
    mask = present[None, :] & within[:, None]
    result = sums.to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + row[None, :] * outputs + column[:, None], result, mask=mask)


@triton.jit(do_not_specialize=["values", "parts"])
def _sum_kernel(
    part_ptr, bias_ptr, output_ptr, values, outputs, parts, BIAS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    """One program per range of values of the output, which are the sums of all parts."""
    await_inputs()
    place = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    within = place < values
    total = tl.zeros([COLUMNS], tl.float32)
    for _ in range(parts):
        total += tl.load(part_ptr + place, mask=within, other=0.0)
        part_ptr += values
    if BIAS:
        total += tl.load(bias_ptr + place % outputs, mask=within, other=0.0).to(tl.float32)
    tl.store(output_ptr + place, total.to(output_ptr.dtype.element_ty), mask=within)


class CodedTiles(NamedTuple):
    """A tile of weights, and how the kernel is compiled."""

    outputs: int
    inputs: int
    warps: int
    stages: int


def coded_tiles(is_ordered: bool) -> CodedTiles:
    """The tiles of weights: about the fastest that benchmarks/tiles.py tries on an H100.

    Args:
        is_ordered: inputs are gathered, which takes registers for all their addresses.
    """
    return CodedTiles(64, 64 if is_ordered else 128, 4, 3)


def _parts_of_inputs(tiles: int, size: int, device: torch.device) -> int:
    """Into how many parts to split the inputs, so that every multiprocessor has some programs."""
    return max(1, min(_PROGRAMS_EACH * multiprocessors(device) // tiles, size // _LEAST_PART))


def coded_product(
    hidden: torch.Tensor,
    weight: PackedCodes,
    bias: torch.Tensor | None = None,
    wide: bool = False,
    tile: int = TILE_M,
    tiles: CodedTiles | None = None,
    *,
    in_parts: bool = True,
) -> torch.Tensor:
    """Each row times the matrix.

    Args:
        hidden: [rows, size], values of a row contiguous.
        bias: [outputs]
        wide: returns float32, else the dtype of `hidden`.
        tile: the number of rows in a tile.
        tiles: None means those of `coded_tiles`.
        in_parts: sums may be split into parts, whose number depends on the GPU and on the number of tiles.

    Returns:
        [rows, outputs]
    """
    rows, outputs = len(hidden), weight.outputs
    tiles = tiles or coded_tiles(weight.order is not None)
    count = triton.cdiv(rows, tile) * triton.cdiv(outputs, tiles.outputs)
    parts = _parts_of_inputs(count, weight.inputs, hidden.device) if in_parts else 1
    output = hidden.new_empty((rows, outputs), dtype=torch.float32 if wide else hidden.dtype)
    if parts == 1:
        _multiply(hidden, weight, bias, output, None, 1, tile, tiles)
        return output
    sums = hidden.new_empty((parts, rows, outputs), dtype=torch.float32)
    _multiply(hidden, weight, None, sums, None, 1, tile, tiles)
    _sum_kernel[(triton.cdiv(output.numel(), _COLUMNS),)](
        sums, bias, output, output.numel(), outputs, parts, BIAS=bias is not None, COLUMNS=_COLUMNS,
        launch_pdl=begins_early(),
    )  # fmt: skip
    return output


def grouped_coded_product(
    hidden: torch.Tensor,
    weight: PackedCodes,
    rows: SortedRows,
    divisor: int,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Each row times its own expert's matrix; arguments as for grouped_product."""
    output = hidden.new_zeros((rows.num_rows, weight.outputs))
    _multiply(hidden, weight, bias, output, rows, divisor, rows.tile, coded_tiles(weight.order is not None))
    return output


def dequantized(weight: PackedCodes, dtype: torch.dtype) -> torch.Tensor:
    """All matrices, [experts, outputs, inputs]; with reordered inputs only a single one."""
    experts, outputs, _ = weight.codes.shape
    output = torch.empty((experts, outputs, weight.inputs), dtype=dtype, device=weight.codes.device)
    tile_n, tile_k = _WIDE_TILE
    _wide_kernel[(triton.cdiv(experts * outputs, tile_n), triton.cdiv(weight.inputs, tile_k))](
        weight.codes, weight.scale, weight.offset, weight.order, weight.table, output, experts * outputs,
        weight.inputs, weight.codes.shape[-1], weight.scale.shape[-1], **_form_of(weight, tile_k), TILE_N=tile_n,
        TILE_K=tile_k, num_warps=4, launch_pdl=begins_early(),
    )  # fmt: skip
    return output


def _form_of(weight: PackedCodes, tile_k: int) -> dict[str, int]:
    """Constants of the kernels that describe the weight."""
    return {
        "KIND": weight.kind,
        "ZERO": weight.zero,
        "NIBBLES": weight.bits == 4,
        "GROUP": weight.group if weight.scale.shape[-1] > 1 else triton.cdiv(weight.inputs, tile_k) * tile_k,
        "OFFSET": weight.offset is not None,
        "ORDER": weight.order is not None,
    }


def _multiply(
    hidden: torch.Tensor,
    weight: PackedCodes,
    bias: torch.Tensor | None,
    output: torch.Tensor,
    rows: SortedRows | None,
    divisor: int,
    tile: int,
    tiles: CodedTiles,
) -> None:
    """Fills `output`, [rows, outputs], or [parts, rows, outputs] with the sums over parts of the inputs."""
    count, outputs = output.shape[-2:]
    row, expert = (None, None) if rows is None else (rows.row, rows.expert)
    row_tiles = triton.cdiv(count, tile) if expert is None else len(expert)
    tile_n, tile_k, warps, stages = tiles
    _coded_kernel[(row_tiles, triton.cdiv(outputs, tile_n), output.numel() // (count * outputs))](
        hidden, weight.codes, weight.scale, weight.offset, weight.order, weight.table, bias, output, row, expert,
        count, outputs, weight.inputs, weight.codes.shape[-1], weight.scale.shape[-1], divisor, hidden.stride(0),
        **_form_of(weight, tile_k), BIAS=bias is not None, SORTED=rows is not None, TILE_M=tile, TILE_N=tile_n,
        TILE_K=tile_k, num_warps=warps, launch_pdl=begins_early(), num_stages=stages,
    )  # fmt: skip
