"""Low-rank products at every level and type: close to float64, and bitwise independent of the other rows in a batch."""

from __future__ import annotations

import pytest
import torch

from engine_svc.native.library import kernels
from engine_svc.ops.native import NativeOps
from tests.support.for_each import for_each
from tests.support.low_rank import ROWS, TOLERANCE, LowRankCase
from tests.support.native import every_level


@every_level
@pytest.mark.parametrize("weight_dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@for_each(("size", "outputs"), [(64, (64, 32)), (1001, (130, 7)), (5, (1, 600))])
def test_low_rank(
    level: str, dtype: torch.dtype, weight_dtype: torch.dtype, size: int, outputs: tuple[int, int]
) -> None:
    case, ops = LowRankCase(size, outputs, dtype, weight_dtype), NativeOps(kernels(level))
    whole = case.run(ops)
    case.check(whole)
    for count in (1, 2, 3, 5, 17, 30):  # each row equals that of the whole batch
        assert case.run(ops, slice(0, count)).equal(whole[:count]), count
        assert case.run(ops, slice(ROWS - count, ROWS)).equal(whole[ROWS - count :]), count
