"""Activations, alone and gated: SwiGLU, GeGLU, those clamped and clipped (gpt-oss, Step 3.5, DeepSeek V4), xIELU."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from engine_svc.kernels.overlap import await_inputs, begins_early

_COLUMNS = 1024
_KINDS = {"silu": 0, "gelu_tanh": 1, "clamped": 2, "gelu": 3, "relu": 4, "relu2": 5, "clipped": 6}


class NamedActivation(NamedTuple):
    """An activation as ops/base.py names it; "clamped" is ClampedSwish, "clipped" ClippedSilu.

    A clipped gate's own limit takes the place of the slope.
    """

    name: str
    slope: float = 1.0
    limit: float = 1.0

    @property
    def kind(self) -> int:
        """The KIND of the kernels."""
        return _KINDS[self.name]


@triton.jit
def _activated(values, slope, limit, KIND: tl.constexpr):
    """Applies the activation KIND to values.

    SiLU, tanh GELU and the clamped one are values * sigmoid(z) with different z, and the clipped one is SiLU up to
    `slope`. The others are GELU by the error function, ReLU, and ReLU squared; the last two keep NaN.
    """
    if KIND == 3:
        return values * 0.5 * (1.0 + tl.erf(values * 0.7071067811865476))
    if KIND == 4 or KIND == 5:
        positive = tl.where(values < 0.0, 0.0, values)
        return positive if KIND == 4 else positive * positive
    z = values
    if KIND == 1:
        z = 1.5957691216057308 * values * (1.0 + 0.044715 * values * values)
    if KIND == 2:
        values = tl.minimum(values, limit)
        z = values * slope
    result = values * tl.sigmoid(tl.maximum(z, -80.0))  # below this, the exponential inside would overflow
    return tl.minimum(result, slope) if KIND == 6 else result


@triton.jit
def gated(gate, up, slope, limit, KIND: tl.constexpr):
    """The activated gate times `up`, in float32; the clamped and the clipped activation limit `up`, too."""
    if KIND == 2 or KIND == 6:
        up = tl.minimum(tl.maximum(up, -limit), limit)
    if KIND == 2:
        up += 1.0
    return _activated(gate, slope, limit, KIND) * up


@triton.jit
def _gated_kernel(
    gate_up_ptr,
    output_ptr,
    slope,
    limit,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    KIND: tl.constexpr,
):
    """One program per row and range of columns."""
    await_inputs()
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < SIZE
    gate = tl.load(gate_up_ptr + row * 2 * SIZE + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * SIZE + SIZE + column, mask=inside, other=0.0).to(tl.float32)
    result = gated(gate, up, slope, limit, KIND)
    tl.store(output_ptr + row * SIZE + column, result.to(output_ptr.dtype.element_ty), mask=inside)


def activate_and_multiply(gate_up: torch.Tensor, activation: NamedActivation) -> torch.Tensor:
    """[tokens, 2 * size] → activation(first half) * second half; contiguous."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    output = gate_up.new_empty((rows, size))
    _gated_kernel[(rows, triton.cdiv(size, _COLUMNS))](
        gate_up, output, activation.slope, activation.limit, SIZE=size, COLUMNS=_COLUMNS, KIND=activation.kind,
        num_warps=4, launch_pdl=begins_early(),
    )  # fmt: skip
    return output


@triton.jit
def _activate_kernel(values_ptr, size, COLUMNS: tl.constexpr, KIND: tl.constexpr):
    """One program per range of values."""
    await_inputs()
    place = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = place < size
    values = tl.load(values_ptr + place, mask=inside, other=0.0).to(tl.float32)
    result = _activated(values, 1.0, 1.0, KIND)
    tl.store(values_ptr + place, result.to(values_ptr.dtype.element_ty), mask=inside)


def activate(values: torch.Tensor, kind: str) -> torch.Tensor:
    """Applies the activation to contiguous [tokens, size], in place."""
    size = values.numel()
    _activate_kernel[(triton.cdiv(size, _COLUMNS),)](
        values, size, COLUMNS=_COLUMNS, KIND=_KINDS[kind], num_warps=4, launch_pdl=begins_early(),
    )  # fmt: skip
    return values


@triton.jit
def _xielu_kernel(values_ptr, numbers_ptr, size, COLUMNS: tl.constexpr):
    """One program per range of values; see Ops.xielu. NaN stays NaN."""
    await_inputs()
    place = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = place < size
    rise, fall = tl.load(numbers_ptr), tl.load(numbers_ptr + 1)
    slope, limit = tl.load(numbers_ptr + 2), tl.load(numbers_ptr + 3)
    values = tl.load(values_ptr + place, mask=inside, other=0.0).to(tl.float32)
    below = tl.where(values > limit, limit, values)
    # From -1 on by its series, because there the difference would lose most of its digits.
    series = 1.0 + below * (1.0 / 10)
    for divisor in tl.static_range(9, 2, -1):
        series = 1.0 + series * below * (1.0 / divisor)
    rest = tl.where(below < -1.0, tl.exp(below) - 1.0 - below, series * below * below * 0.5)
    falling = (slope + fall) * (rest + (below - values))
    curve = tl.where(values > 0.0, rise * values * values, falling)
    tl.store(values_ptr + place, (slope * values + curve).to(values_ptr.dtype.element_ty), mask=inside)


def xielu(values: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """See Ops.xielu."""
    size = values.numel()
    _xielu_kernel[(triton.cdiv(size, _COLUMNS),)](
        values, numbers, size, COLUMNS=_COLUMNS, num_warps=4, launch_pdl=begins_early()
    )
    return values
