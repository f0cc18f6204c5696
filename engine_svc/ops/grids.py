"""The grids that formats of weights are coded in."""

from __future__ import annotations

import torch

from engine_svc.ops.weights import Grid


def _of_floats(dtype: torch.dtype) -> tuple[float, ...]:
    return tuple(torch.arange(256, dtype=torch.uint8).view(dtype).float().tolist())


# Whole numbers; what a format counts from zero has an offset.
INT4 = Grid("int4", tuple(float(code - 8) for code in range(16)))
INT8 = Grid("int8", tuple(float(code - 128) for code in range(256)))
# Floating-point numbers of eight bits, as codes of which they are the bytes.
E4M3 = Grid("e4m3", _of_floats(torch.float8_e4m3fn))
E5M2 = Grid("e5m2", _of_floats(torch.float8_e5m2))
# Of four bits: sixteen numbers, of which two are zeros.
_QUARTERS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1 = Grid("e2m1", (*_QUARTERS, *(-value for value in _QUARTERS)))
