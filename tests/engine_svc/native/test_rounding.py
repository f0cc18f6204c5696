"""Quantizing weights while loading: at every level and type, the codes equal those that torch computes."""

from __future__ import annotations

import pytest
import torch

from engine_svc.native.library import kernels
from engine_svc.ops.native import NativeOps
from engine_svc.ops.rounding import to_int4
from tests.support.native import every_level


@every_level
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("shape", "group"), [((300, 1024), 128), ((2, 5, 333), 128), ((7, 100), 32), ((3, 5), 128)])
def test_four_bits(level: str, dtype: torch.dtype, shape: tuple[int, ...], group: int) -> None:
    """Covers normal weights, groups of zeros, extremes of both signs, and whole numbers that are ties."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    weight[..., 0, :] = 0
    weight[..., 1, : shape[-1] // 2] = -weight[..., 1, -(shape[-1] // 2) :]
    weight[..., 2, :] = weight[..., 2, :].mul(4).round()
    weight = weight.to(dtype)
    expected, found = to_int4(weight, group), NativeOps(kernels(level)).quantize_groups(weight, group)
    assert torch.equal(found.codes, expected.codes)
    assert torch.equal(found.scale, expected.scale)
    assert (found.grid, found.group, found.offset) == (expected.grid, expected.group, None)
