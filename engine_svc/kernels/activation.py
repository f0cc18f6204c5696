"""Gated activations: SwiGLU, GeGLU, and the clamped one of gpt-oss."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_COLUMNS = 1024


@triton.jit
def _activate_kernel(
    gate_up_ptr,
    output_ptr,
    slope,
    limit,
    SIZE: tl.constexpr,
    COLUMNS: tl.constexpr,
    GELU: tl.constexpr,
    CLAMPED: tl.constexpr,
):
    """One program per row and range of columns.

    gate * sigmoid(z) * up: z is gate itself (SiLU), or makes it GELU (tanh); clamped, it is steeper and up 1 higher.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < SIZE
    gate = tl.load(gate_up_ptr + row * 2 * SIZE + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * 2 * SIZE + SIZE + column, mask=inside, other=0.0).to(tl.float32)
    z = gate
    if GELU:
        z = 1.5957691216057308 * gate * (1.0 + 0.044715 * gate * gate)
    if CLAMPED:
        gate = tl.minimum(gate, limit)
        up = tl.minimum(tl.maximum(up, -limit), limit) + 1.0
        z = gate * slope
    result = gate * tl.sigmoid(tl.maximum(z, -80.0)) * up  # lower, and the power inside would overflow
    tl.store(output_ptr + row * SIZE + column, result.to(output_ptr.dtype.element_ty), mask=inside)


def activate_and_multiply(
    gate_up: torch.Tensor, is_gelu: bool, clamped: tuple[float, float] | None = None
) -> torch.Tensor:
    """[tokens, 2 * size] → activation(first half) * second half, by SiLU or by GELU (tanh); contiguous.

    Args:
        clamped: slope and limit of gpt-oss' activation, which takes their place.
    """
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    output = gate_up.new_empty((rows, size))
    slope, limit = clamped or (1.0, 1.0)
    _activate_kernel[(rows, triton.cdiv(size, _COLUMNS))](
        gate_up, output, slope, limit, SIZE=size, COLUMNS=_COLUMNS, GELU=is_gelu,
        CLAMPED=clamped is not None, num_warps=4,
    )  # fmt: skip
    return output
