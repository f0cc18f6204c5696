"""The grids that formats of weights are coded in."""

from __future__ import annotations

import torch

from engine_svc.ops.weights import Grid


def _of_floats(dtype: torch.dtype) -> tuple[float, ...]:
    return tuple(torch.arange(256, dtype=torch.uint8).view(dtype).float().tolist())


# Whole numbers; what a format counts from zero has an offset.
INT4 = Grid("int4", tuple(float(code - 8) for code in range(16)))
INT8 = Grid("int8", tuple(float(code - 128) for code in range(256)))
# Sixteen numbers that parts of a normal distribution are equally likely to be nearest to (Dettmers et al. 2023), as
# bitsandbytes has them, and its numbers of four bits with a sign, three of which are for an exponent or so.
NF4 = Grid("nf4", (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
))  # fmt: skip
_TWELFTHS = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)
FP4 = Grid("fp4", (*(value / 12 for value in _TWELFTHS), *(-value / 12 for value in _TWELFTHS)))
# Floating-point numbers of eight bits, as codes of which they are the bytes.
E4M3 = Grid("e4m3", _of_floats(torch.float8_e4m3fn))
E5M2 = Grid("e5m2", _of_floats(torch.float8_e5m2))
# Of four bits: sixteen numbers, of which two are zeros.
_QUARTERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = Grid("e2m1", (*_QUARTERS, *(-value for value in _QUARTERS)))
