"""The e4m3 type handled as bytes: Triton has it only from compute capability 8.9 on (Ada, Hopper)."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


def in_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, as uint8 if Triton does not support e4m3 on this device."""
    has_type = tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (8, 9)
    return tensor.view(torch.uint8) if tensor.dtype == torch.float8_e4m3fn and not has_type else tensor


@triton.jit
def widen(values, dtype: tl.constexpr):
    """Converts to `dtype`: numbers of another type, or bytes of e4m3, which every type represents exactly."""
    if values.dtype == tl.uint8:
        code = values.to(tl.uint32)
        size = code & 0x7F
        normal = ((size << 20) + (120 << 23)).to(tl.float32, bitcast=True)
        small = (size & 7).to(tl.float32) * 0.001953125
        wide = tl.where(size == 0x7F, float("nan"), tl.where(size < 8, small, normal))
        found = tl.where(code >= 0x80, -wide, wide).to(dtype)
    else:
        found = values.to(dtype)
    return found


@triton.jit
def narrow(values, dtype: tl.constexpr, MOST: tl.constexpr):
    """Rounds to the nearest numbers of `dtype`, or to bytes of e4m3; values are clamped to -MOST … MOST."""
    if dtype == tl.uint8:
        wide = values.to(tl.float32)
        size = tl.minimum(tl.abs(wide), MOST)
        bits = size.to(tl.uint32, bitcast=True)
        rounded = (bits + 0x7FFFF + ((bits >> 20) & 1) - (120 << 23)) >> 20
        # Below 2^-6, the code is a number of steps of 2^-9; adding 1.5 * 2^23 rounds to an integer.
        counted = (size * 512.0 + 12582912.0).to(tl.uint32, bitcast=True) - 0x4B400000
        code = tl.where(wide != wide, 0x7F, tl.where(size < 0.015625, counted, rounded))
        found = (code | (wide.to(tl.uint32, bitcast=True) >> 24 & 0x80)).to(tl.uint8)
    elif MOST > 0:
        found = tl.minimum(tl.maximum(values, -MOST), MOST).to(dtype)
    else:
        found = values
    return found
