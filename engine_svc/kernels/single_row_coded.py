"""The product of single rows with weights in codes, as fast as the codes can be read; see single_row.py.

Tensor cores would be idle, so weights are not brought into their form: the codes of a 32-bit word are taken apart in
registers and multiplied there. Codes of whole numbers become numbers by a shift and one operation, which put them
behind the exponent of 1 (1 + code / 2^bits); what this adds to a sum is known from the sum of the inputs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine_svc.kernels.activation import NamedActivation
from engine_svc.kernels.coded import LOOKED_UP, WHOLE, PackedCodes, load_groups, widen_codes
from engine_svc.kernels.int8 import ROUNDING, int8_codes, int8_scale
from engine_svc.kernels.overlap import await_inputs, begins_early
from engine_svc.kernels.single_row import GATED, NORM, PLAIN, MatrixTiles, Norm, norm_factor, row_values, store_result

_WORD_BITS = 32
_ONE_BITS = 0x3F800000  # of 1.0 in float32
_MOST_GROUP_WORDS = 128  # the fewest words of a tile
MOST_ROWS = 1  # two are about as fast as tiles of 16


@triton.jit
def _codes_of(words, BITS: tl.constexpr, TILE_N: tl.constexpr, TILE_W: tl.constexpr):
    """uint32 [TILE_N, TILE_W] → codes, uint32 [TILE_N, TILE_W, 32 // BITS]. The first ones are in the lowest bits."""
    halves = tl.join(words & 0xFFFF, words >> 16)
    codes = tl.join(halves & 0xFF, halves >> 8)
    if BITS == 4:
        codes = tl.join(codes & 15, codes >> 4)
    return tl.reshape(codes, (TILE_N, TILE_W, 32 // BITS))


@triton.jit
def _load_words(weight_ptr, line, word, within, ROW_WORDS: tl.constexpr):
    """A tile's words, uint32 [TILE_N, TILE_W]."""
    mask = within[:, None] & (word < ROW_WORDS)[None, :]
    return tl.load(weight_ptr + line[:, None] * ROW_WORDS + word[None, :], mask=mask, other=0).to(
        tl.uint32, bitcast=True
    )


@triton.jit
def _int8_scale(
    input_ptr, residual_ptr, norm_ptr, factor, slope, limit, INPUT: tl.constexpr, RESIDUAL: tl.constexpr,
    ACTIVATION: tl.constexpr, SIZE: tl.constexpr, SIZE_PADDED: tl.constexpr,
):  # fmt: skip
    """The row's `int8_scale`."""
    place = tl.arange(0, SIZE_PADDED)
    inside = place < SIZE
    norms = tl.load(norm_ptr + place, mask=inside, other=0.0) if INPUT == NORM else factor
    values = row_values(
        input_ptr, residual_ptr, norms, place, inside, factor, slope, limit, INPUT, RESIDUAL, ACTIVATION, SIZE
    )
    return int8_scale(values)


@triton.jit
def _values_of_words(
    input_ptr, residual_ptr, norm_ptr, order_ptr, word, factor, inverse, slope, limit, INPUT: tl.constexpr,
    RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr, INT8: tl.constexpr, BITS: tl.constexpr, ORDER: tl.constexpr,
    SIZE: tl.constexpr,
):  # fmt: skip
    """The row's values that codes of some words are multiplied with, [words, 32 // BITS]."""
    place = word[:, None] * (32 // BITS) + tl.arange(0, 32 // BITS)[None, :]
    inside = place < SIZE
    if ORDER:
        place = tl.load(order_ptr + place, mask=inside, other=0)
    norms = tl.load(norm_ptr + place, mask=inside, other=0.0) if INPUT == NORM else factor
    values = row_values(
        input_ptr, residual_ptr, norms, place, inside, factor, slope, limit, INPUT, RESIDUAL, ACTIVATION, SIZE
    )
    if INT8:
        values = int8_codes(values, inverse) - ROUNDING
    return values


@triton.jit
def _products(
    words, values, total, table_ptr, one_bits, INT8: tl.constexpr, KIND: tl.constexpr, ZERO: tl.constexpr,
    BITS: tl.constexpr, TILE_N: tl.constexpr, TILE_W: tl.constexpr,
):  # fmt: skip
    """Each word's numbers times the values that belong to them, summed: [TILE_N, TILE_W].

    Args:
        values: [TILE_W, 32 // BITS]; total: [1, TILE_W], their sums.
    """
    if INT8:
        words = words ^ 0x80808080
    codes = _codes_of(words, BITS, TILE_N, TILE_W)
    if KIND == WHOLE:
        numbers = ((codes << (23 - BITS)) | one_bits).to(tl.float32, bitcast=True)
    else:
        numbers = widen_codes(codes.to(tl.uint8), table_ptr, KIND, ZERO)
    products = tl.sum(numbers * values[None, :, :], 2)
    if KIND == WHOLE:
        products = products * (1 << BITS) - total * ((1 << BITS) + ZERO)
    return products


@triton.jit
def _coded_row_kernel(
    input_ptr, residual_ptr, norm_ptr, weight_ptr, scale_ptr, offset_ptr, order_ptr, table_ptr, bias_ptr, added_ptr,
    id_ptr, output_ptr, epsilon, slope, limit, outputs, groups, divisor, input_stride, one_bits,
    INPUT: tl.constexpr, RESIDUAL: tl.constexpr, ACTIVATION: tl.constexpr, INT8: tl.constexpr, KIND: tl.constexpr,
    ZERO: tl.constexpr, BITS: tl.constexpr, WORDS_IN_GROUP: tl.constexpr, OFFSET: tl.constexpr, ORDER: tl.constexpr,
    EXPERTS: tl.constexpr, SIZE: tl.constexpr, SIZE_PADDED: tl.constexpr, ROW_WORDS: tl.constexpr, BIAS: tl.constexpr,
    TOTAL: tl.constexpr, ADDED: tl.constexpr, TILE_N: tl.constexpr, TILE_W: tl.constexpr,
):  # fmt: skip
    """One program per row and tile of outputs; see `_single_row_kernel`.

    Args:
        INT8: codes are of type int8, and the row is quantized to int8 too.
        one_bits: _ONE_BITS, unknown to the compiler: an instruction has room for one constant, and this way a code's
            mask and the exponent go into one.
        WORDS_IN_GROUP: 0 if each output has a single scale.
        EXPERTS: each row has its own matrix; the product with expert -1 is 0.
    """
    row, column = tl.program_id(0), tl.program_id(1).to(tl.int64) * TILE_N + tl.arange(0, TILE_N)
    within, word, line = column < outputs, tl.arange(0, TILE_W), column
    words = tl.zeros([TILE_N, TILE_W], tl.uint32)
    if not EXPERTS:
        words = _load_words(weight_ptr, line, word, within, ROW_WORDS)
    await_inputs()
    if EXPERTS:
        expert = tl.load(id_ptr + row)
        within = column < tl.where(expert < 0, 0, outputs)
        expert = tl.maximum(expert, 0)
        line += expert * outputs
        words = _load_words(weight_ptr, line, word, within, ROW_WORDS)
        if ORDER:
            order_ptr += expert * SIZE
        if BIAS:
            bias_ptr += expert * outputs
    input_ptr += row // divisor * input_stride
    if RESIDUAL:
        residual_ptr += row * SIZE
    if ADDED:
        added_ptr += row * outputs
    factor, scale, inverse, is_broken = 1.0, 1.0, 1.0, 0
    if INPUT == NORM:
        factor = norm_factor(input_ptr, residual_ptr, epsilon, SIZE, SIZE_PADDED, RESIDUAL)
    if INT8:
        scale, inverse, is_broken = _int8_scale(
            input_ptr, residual_ptr, norm_ptr, factor, slope, limit, INPUT, RESIDUAL, ACTIVATION, SIZE, SIZE_PADDED
        )
    sums, totals = tl.zeros([TILE_N, TILE_W], tl.float32), tl.zeros([1, TILE_W], tl.float32)
    for begin in range(0, ROW_WORDS, TILE_W):
        following = _load_words(weight_ptr, line, begin + TILE_W + word, within, ROW_WORDS)
        values = _values_of_words(
            input_ptr, residual_ptr, norm_ptr, order_ptr, begin + word, factor, inverse, slope, limit, INPUT, RESIDUAL,
            ACTIVATION, INT8, BITS, ORDER, SIZE,
        )  # fmt: skip
        total = tl.sum(values, 1)[None, :]
        products = _products(words, values, total, table_ptr, one_bits, INT8, KIND, ZERO, BITS, TILE_N, TILE_W)
        if WORDS_IN_GROUP > 0:
            products *= load_groups(scale_ptr, line, begin, within, groups, WORDS_IN_GROUP, TILE_N, TILE_W)
            if OFFSET:
                products += total * load_groups(
                    offset_ptr, line, begin, within, groups, WORDS_IN_GROUP, TILE_N, TILE_W
                )  # fmt: skip
        elif OFFSET:
            totals += total
        sums += products
        words = following
    result = tl.sum(sums, 1)
    if INT8:
        result *= tl.where(is_broken > 0, float("nan"), scale)
    if WORDS_IN_GROUP == 0:
        result *= tl.load(scale_ptr + line, mask=within, other=0.0)
        if OFFSET:
            result += tl.sum(totals) * tl.load(offset_ptr + line, mask=within, other=0.0)
    if EXPERTS:  # rows without an expert are written too
        if BIAS:
            result += tl.load(bias_ptr + column, mask=within, other=0.0).to(tl.float32)
        within = column < outputs
    store_result(
        result, bias_ptr, added_ptr, output_ptr + row * outputs, column, within, BIAS and not EXPERTS, TOTAL, ADDED
    )  # fmt: skip


def takes_rows(weight: PackedCodes) -> bool:
    """Whether the kernel can read the weight: groups of inputs must be whole words, and tiles whole groups."""
    per_word = _WORD_BITS // weight.bits
    words = weight.group // per_word
    is_whole = weight.group % per_word == 0 and 0 < words <= _MOST_GROUP_WORDS and words & (words - 1) == 0
    return weight.scale.shape[-1] == 1 or is_whole


def coded_row_tiles(size: int, bits: int, kind: int) -> MatrixTiles:
    """The tiles for an input size and a kind of codes: about the fastest that benchmarks/tiles.py tries on an H100.

    Looking up codes takes registers for the addresses of all of them.
    """
    if kind == int(LOOKED_UP):
        return MatrixTiles(4, 1024, 4)
    if bits == 8:
        return MatrixTiles(16, 1024, 8)
    return MatrixTiles(16, 1024, 4) if size <= 4096 else MatrixTiles(16, 2048, 8)


def coded_row_product(
    hidden: torch.Tensor,
    weight: PackedCodes,
    bias: torch.Tensor | None = None,
    *,
    wide: bool = False,
    norm: Norm | None = None,
    activation: NamedActivation | None = None,
    total: torch.Tensor | None = None,
    added: torch.Tensor | None = None,
    expert_ids: torch.Tensor | None = None,
    tiles: MatrixTiles | None = None,
) -> torch.Tensor:
    """Arguments as for single_row_product.

    Args:
        weight: one for which `takes_rows` holds.
        bias: [outputs], or [experts, outputs] with expert_ids.
        expert_ids: int64 [rows]: each row's matrix, -1 for a row whose product is 0. If `hidden` has fewer rows, each
            row of it is multiplied with as many experts, one after the other.

    Returns:
        [rows, outputs]: `total` if there is one.
    """
    given, size, outputs = len(hidden), weight.inputs, weight.outputs
    rows = given if expert_ids is None else len(expert_ids)
    tiles = tiles or coded_row_tiles(size, weight.bits, weight.kind)
    output = total
    if output is None:
        output = hidden.new_empty((rows, outputs), dtype=torch.float32 if wide else hidden.dtype)
    residual, scales, epsilon = norm or (None, None, 0.0)
    before = NORM if norm is not None else PLAIN if activation is None else GATED
    activation = activation or NamedActivation("silu")
    per_word, groups = _WORD_BITS // weight.bits, weight.scale.shape[-1]
    _coded_row_kernel[(rows, triton.cdiv(outputs, tiles.outputs))](
        hidden, residual, scales, weight.codes.view(torch.int32), weight.scale, weight.offset, weight.order,
        weight.table, bias, added, expert_ids, output, epsilon, activation.slope, activation.limit, outputs, groups,
        rows // given, hidden.stride(0), _ONE_BITS, INPUT=before.value, RESIDUAL=residual is not None,
        ACTIVATION=activation.kind, INT8=weight.takes_int8, KIND=weight.kind, ZERO=weight.zero, BITS=weight.bits,
        WORDS_IN_GROUP=weight.group // per_word if groups > 1 else 0, OFFSET=weight.offset is not None,
        ORDER=weight.order is not None, EXPERTS=expert_ids is not None, SIZE=size,
        SIZE_PADDED=triton.next_power_of_2(size), ROW_WORDS=weight.codes.shape[-1] // 4, BIAS=bias is not None,
        TOTAL=total is not None, ADDED=added is not None, TILE_N=tiles.outputs, TILE_W=tiles.inputs // per_word,
        num_warps=tiles.warps, launch_pdl=begins_early(),
    )  # fmt: skip
    return output
