"""Low-rank products of every level and type: against float64, and bit for bit the same whatever stands beside a row."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine_svc.lora.tiles import tiles_of
from engine_svc.native.library import kernels
from engine_svc.ops.base import Ops, RowTiles
from engine_svc.ops.native import NativeOps
from engine_svc.ops.plain import PlainOps
from tests.support.native import every_level

TYPES = [torch.float32, torch.bfloat16, torch.float16]
RANK, GROUPS, ROWS = 12, 3, 37


def normal(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class Case:
    """Rows of three groups and of none, over a layer of two parts."""

    def __init__(self, size: int, outputs: tuple[int, int], dtype: torch.dtype, weight_dtype: torch.dtype) -> None:
        self.down = normal(GROUPS, 2, RANK, size, dtype=weight_dtype, seed=1) / size**0.5
        self.up = normal(GROUPS, RANK, sum(outputs), dtype=weight_dtype, seed=2)
        self.ranks = torch.tensor([[RANK, 3], [0, 8], [1, RANK]], dtype=torch.int32)
        self.starts = torch.tensor([0, outputs[0], sum(outputs)])
        self.hidden = normal(ROWS, size + 8, dtype=dtype, seed=3)[:, 3 : 3 + size]
        self.base = normal(ROWS, sum(outputs), dtype=dtype, seed=4)
        self.groups = np.random.default_rng(0).integers(-1, GROUPS, ROWS)
        self.groups[:18] = 0  # more than a tile

    def run(self, ops: Ops, rows: slice = slice(None)) -> torch.Tensor:
        tiles = RowTiles(*(torch.from_numpy(each) for each in tiles_of(self.groups[rows])))
        output = self.base[rows].clone()
        sums = ops.shrink(self.hidden[rows], self.down, self.ranks, tiles)
        ops.expand(sums, self.up, self.ranks, self.starts, tiles, output)
        return output

    def expected(self) -> torch.Tensor:
        output = self.base.double()
        for row, group in enumerate(self.groups):
            for part in (0, 1) if group >= 0 else ():
                rank, columns = self.ranks[group, part], slice(*self.starts[part : part + 2].tolist())
                inner = self.down[group, part, :rank].double() @ self.hidden[row].double()
                output[row, columns] += inner @ self.up[group, :rank, columns].double()
        return output


@every_level
@pytest.mark.parametrize("weight_dtype", TYPES, ids=str)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize(("size", "outputs"), [(64, (64, 32)), (1001, (130, 7)), (5, (1, 600))])
def test_low_rank(
    level: str, dtype: torch.dtype, weight_dtype: torch.dtype, size: int, outputs: tuple[int, int]
) -> None:
    case, ops = Case(size, outputs, dtype, weight_dtype), NativeOps(kernels(level))
    whole = case.run(ops)
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    torch.testing.assert_close(whole.double(), case.expected(), atol=tolerance, rtol=tolerance)
    assert whole[case.groups < 0].equal(case.base[case.groups < 0])
    for count in (1, 2, 3, 5, 17, 30):  # each row is what it is among all of them
        assert case.run(ops, slice(0, count)).equal(whole[:count]), count
        assert case.run(ops, slice(ROWS - count, ROWS)).equal(whole[ROWS - count :]), count


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_plain_low_rank(dtype: torch.dtype) -> None:
    case = Case(33, (20, 7), dtype, dtype)
    tolerance = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    torch.testing.assert_close(case.run(PlainOps()).double(), case.expected(), atol=tolerance, rtol=tolerance)


@every_level
def test_neighbouring_groups_may_share_their_matrices(level: str) -> None:
    case = Case(40, (24, 8), torch.float32, torch.float32)
    tiles = RowTiles(*(torch.from_numpy(each) for each in tiles_of(np.arange(ROWS) % (2 * GROUPS))))
    for ops in (NativeOps(kernels(level)), PlainOps()):
        output = torch.zeros_like(case.base)
        sums = ops.shrink(case.hidden, case.down, case.ranks, tiles, sharing=2)
        ops.expand(sums, case.up, case.ranks, case.starts, tiles, output, sharing=2)
        case.groups, case.base = np.arange(ROWS) % (2 * GROUPS) // 2, torch.zeros_like(case.base)
        torch.testing.assert_close(output.double(), case.expected(), atol=1e-4, rtol=1e-4)
