"""RMS norm of rows, after adding the residual if there is one."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from engine_svc.kernels.overlap import await_inputs, begins_early


@triton.jit
def _norm_kernel(
    hidden_ptr,
    residual_ptr,
    weight_ptr,
    output_ptr,
    epsilon,
    hidden_stride,
    residual_stride,
    output_stride,
    SIZE: tl.constexpr,
    SIZE_PADDED: tl.constexpr,
    WITH_RESIDUAL: tl.constexpr,
):
    """One program per row; sums in float32."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, SIZE_PADDED)
    inside = column < SIZE
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0).to(tl.float32)
    await_inputs()
    values = tl.load(hidden_ptr + row * hidden_stride + column, mask=inside, other=0.0)
    if WITH_RESIDUAL:
        values += tl.load(residual_ptr + row * residual_stride + column, mask=inside, other=0.0)
        tl.store(residual_ptr + row * residual_stride + column, values, mask=inside)
    wide = values.to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / SIZE + epsilon)
    result = (wide * factor * weight).to(output_ptr.dtype.element_ty)
    tl.store(output_ptr + row * output_stride + column, result, mask=inside)


def rms_norm(
    hidden: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    epsilon: float,
    output: torch.Tensor | None = None,
) -> torch.Tensor:
    """[rows, size] → [rows, size]; all tensors with any stride between rows.

    Args:
        residual: has `hidden` added in place, and the sum is normalized. None means `hidden` is normalized.
        output: receives the result; may be `hidden`. None means a new tensor.
    """
    rows, size = hidden.shape
    if output is None:
        output = torch.empty_like(hidden, memory_format=torch.contiguous_format)
    _norm_kernel[(rows,)](
        hidden, residual, weight, output, epsilon, hidden.stride(0), 0 if residual is None else residual.stride(0),
        output.stride(0), SIZE=size, SIZE_PADDED=triton.next_power_of_2(size), WITH_RESIDUAL=residual is not None,
        num_warps=4 if size <= 4096 else 8, launch_pdl=begins_early(),
    )  # fmt: skip
    return output
