"""The grids of values that coded weight formats use."""

from __future__ import annotations

import torch

from engine_svc.ops.weights import Grid


def _of_floats(dtype: torch.dtype) -> tuple[float, ...]:
    return tuple(torch.arange(256, dtype=torch.uint8).view(dtype).float().tolist())


# Signed integers; formats with unsigned codes also have an offset.
INT4 = Grid("int4", tuple(float(code - 8) for code in range(16)))
INT8 = Grid("int8", tuple(float(code - 128) for code in range(256)))
# NF4: the sixteen values of bitsandbytes, each equally likely to be the nearest to a normally distributed number
# (Dettmers et al. 2023). FP4: bitsandbytes' four-bit floats, a sign bit and three bits for roughly an exponent.
NF4 = Grid("nf4", (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
))  # fmt: skip
_TWELFTHS = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
FP4 = Grid("fp4", (*(value / 12 for value in _TWELFTHS), *(-value / 12 for value in _TWELFTHS)))
# Eight-bit floating-point numbers; a number's code is its byte.
E4M3 = Grid("e4m3", _of_floats(torch.float8_e4m3fn))
E5M2 = Grid("e5m2", _of_floats(torch.float8_e5m2))
# Four-bit floating-point numbers: sixteen codes, two of which stand for zero.
_QUARTERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = Grid("e2m1", (*_QUARTERS, *(-value for value in _QUARTERS)))
