"""How weights are packed for the kernels."""

from __future__ import annotations

import pytest
import torch

from engine_svc.ops.packing import Packed, matrix_product, pack
from tests.support.native import fastest_kernels, needs_native


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_views_are_packed_as_what_they_show(dtype: torch.dtype) -> None:
    kernels = fastest_kernels()
    weight = torch.randn(3, 16, 24).to(dtype)
    for each, packed in zip(weight, pack(kernels, weight.transpose(1, 2)).weights, strict=True):
        product = matrix_product(kernels, Packed(packed), torch.Size((24, 16)), None)
        found = product(torch.eye(16, dtype=dtype))
        assert found.equal(each)
