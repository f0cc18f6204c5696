"""Mamba 2's selective scan of prompts, as the paper's block decomposition ("Transformers are SSMs", Dao and Gu 2024).

A chunk's outputs are those of masked attention within it, plus what is read from the state before it:

    y = (decays * C B^T) X + decay * C state    and then    state = decay * state + (decays * B)^T X

so a program goes through chunks instead of tokens, with matrix products. All decays are exponentials of differences of
sums that only fall, so none overflows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from engine_svc.kernels.overlap import await_inputs
from engine_svc.kernels.recurrence import held_tile, hold_tile, sequence_of, softplus
from engine_svc.kernels.tiles import has_room


class ChunkTiles(NamedTuple):
    """How a kernel divides its work."""

    chunk: int  # tokens
    columns: int  # the most of a head's numbers that a program has
    warps: int
    stages: int  # with two, the next chunk is loaded while one is computed

    def of(self, dtype: torch.dtype, capability: tuple[int, int]) -> ChunkTiles:
        """Those for a model's dtype and a GPU: chunks of wider operands are smaller, so that they fit in registers."""
        if dtype != torch.bfloat16:
            return ChunkTiles(16, 16, 4, 1)
        return self if has_room(capability) else self._replace(stages=1)

    def columns_of(self, size: int, dim: int) -> int:
        """Columns of a program, for states of [size, dim]; products need at least 16."""
        most = min(self.columns, _NUMBERS // triton.next_power_of_2(size))
        return max(16, min(triton.next_power_of_2(dim), most))


TILES = ChunkTiles(chunk=64, columns=32, warps=4, stages=2)
_NUMBERS = 8192  # the most numbers of a state per program


class Operands(NamedTuple):
    """What the operands of products are converted to; the sums are float32."""

    stored: torch.dtype
    loaded: tl.dtype
    precision: str


def operands(dtype: torch.dtype) -> Operands:
    """Operands for a model's dtype.

    Those of float16 models are TF32, which has as many digits, because states may exceed the range of float16.
    """
    if dtype == torch.bfloat16:
        return Operands(torch.bfloat16, tl.bfloat16, "ieee")
    return Operands(torch.float32, tl.float32, "tf32x3" if dtype == torch.float32 else "tf32")


def padded(size: int) -> int:
    """Rows of a state as products need them: a power of two, at least 16."""
    return max(16, triton.next_power_of_2(size))


@triton.jit
def chunk_rows(pointer, token, stride, column, inside, own):
    """Rows of a chunk's tokens, in their own type: [tokens, columns]; 0 past its last token and column."""
    return tl.load(pointer + token[:, None] * stride + column[None, :], mask=inside[:, None] & own[None, :], other=0.0)


@triton.jit
def chunked_scan_kernel(
    hidden_ptr,
    step_ptr,
    write_ptr,
    read_ptr,
    output_ptr,
    state_ptr,
    rate_ptr,
    skip_ptr,
    bias_ptr,
    start_ptr,
    slot_ptr,
    fresh_ptr,
    hidden_stride,
    step_stride,
    write_stride,
    read_stride,
    heads,
    sharing,
    size,
    dim,
    least,
    most,
    few,
    HAS_BIAS: tl.constexpr,
    SIZE: tl.constexpr,
    TILE_D: tl.constexpr,
    CHUNK: tl.constexpr,
    OPERAND: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One program per sequence of more than `few` tokens, head, and tile of the head's numbers."""
    await_inputs()
    first, length, slot, is_known = sequence_of(start_ptr, slot_ptr, fresh_ptr)
    if length <= few:
        return
    head, column, entry = tl.program_id(1), tl.program_id(2) * TILE_D + tl.arange(0, TILE_D), tl.arange(0, SIZE)
    own, kept = column < dim, entry < size
    held_ptr = state_ptr + (slot * heads + head) * size * dim
    state = held_tile(held_ptr, entry, column, size * is_known, dim)
    rate, skip = tl.load(rate_ptr + head), tl.load(skip_ptr + head)
    group, numbers = (head // sharing) * size + entry, head * dim + column
    bias = 0.0
    if HAS_BIAS:
        bias = tl.load(bias_ptr + head)
    time = tl.arange(0, CHUNK)
    is_seen = time[:, None] >= time[None, :]
    for begin in range(0, length, CHUNK):
        token, inside = first + begin + time, begin + time < length
        hidden = chunk_rows(hidden_ptr, token, hidden_stride, numbers, inside, own).to(OPERAND)
        write = chunk_rows(write_ptr, token, write_stride, group, inside, kept).to(OPERAND)
        read = chunk_rows(read_ptr, token, read_stride, group, inside, kept).to(OPERAND)
        step = tl.load(step_ptr + token * step_stride + head, mask=inside, other=0.0).to(tl.float32) + bias
        # No time passes at the places behind the last token.
        step = tl.where(inside, tl.minimum(tl.maximum(softplus(step), least), most), 0.0)
        passed = tl.cumsum(step * rate, 0)  # logarithms of the decays since the beginning of the chunk
        whole = tl.min(passed, 0)
        scores = tl.dot(read, tl.trans(write), input_precision=PRECISION)
        scores *= tl.exp(tl.minimum(passed[:, None] - passed[None, :], 0.0)) * step[None, :]
        scores = tl.where(is_seen, scores, 0.0).to(OPERAND)
        output = tl.dot(read, state.to(OPERAND), input_precision=PRECISION) * tl.exp(passed)[:, None]
        output = tl.dot(scores, hidden, output, input_precision=PRECISION) + hidden * skip
        tl.store(
            output_ptr + token[:, None] * heads * dim + numbers[None, :], output, mask=inside[:, None] & own[None, :]
        )
        left = (hidden * (tl.exp(whole - passed) * step)[:, None]).to(OPERAND)
        state = tl.dot(tl.trans(write), left, state * tl.exp(whole), input_precision=PRECISION)
    hold_tile(held_ptr, state, entry, column, size, dim)
