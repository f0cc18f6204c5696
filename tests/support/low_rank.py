"""Test cases for the low-rank products of every implementation: rows of several groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.lora.tiles import tiles_of
from engine_svc.ops.base import ExpertAdapters, LowRankMatrices, Ops, RowTiles

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}
RANK, GROUPS, ROWS = 12, 3, 37


def normal(*shape: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


class LowRankCase:
    """Rows of three groups and of no group, for a layer with two parts."""

    def __init__(self, size: int, outputs: tuple[int, int], dtype: torch.dtype, weight_dtype: torch.dtype) -> None:
        self.down = normal(GROUPS, 2, RANK, size, dtype=weight_dtype, seed=1) / size**0.5
        self.up = normal(GROUPS, RANK, sum(outputs), dtype=weight_dtype, seed=2)
        self.ranks = torch.tensor([[RANK, 3], [0, 8], [1, RANK]], dtype=torch.int32)
        self.starts = torch.tensor([0, outputs[0], sum(outputs)])
        self.hidden = normal(ROWS, size + 8, dtype=dtype, seed=3)[:, 3 : 3 + size]
        self.base = normal(ROWS, sum(outputs), dtype=dtype, seed=4)
        self.groups = np.random.default_rng(0).integers(-1, GROUPS, ROWS)
        self.groups[:18] = 0  # more rows than a tile

    def check(self, output: torch.Tensor) -> None:
        """Checks the result of `run`."""
        tolerance = TOLERANCE[output.dtype]
        torch.testing.assert_close(output.double(), self.expected(), atol=tolerance, rtol=tolerance)
        assert output[self.groups < 0].equal(self.base[self.groups < 0])

    def run(self, ops: Ops, rows: slice = slice(None)) -> torch.Tensor:
        """Runs the products for some of the rows."""
        tiles = row_tiles(self.groups[rows])
        output = self.base[rows].clone()
        sums = ops.shrink(self.hidden[rows], self.down, self.ranks, tiles)
        ops.expand(sums, self.up, self.ranks, self.starts, tiles, output)
        return output

    def expected(self) -> torch.Tensor:
        """The expected result, in float64."""
        output = self.base.double()
        for row, group in enumerate(self.groups):
            for part in (0, 1) if group >= 0 else ():
                rank, columns = self.ranks[group, part], slice(*self.starts[part : part + 2].tolist())
                inner = self.down[group, part, :rank].double() @ self.hidden[row].double()
                output[row, columns] += inner @ self.up[group, :rank, columns].double()
        return output


def row_tiles(groups: npt.NDArray[Any]) -> RowTiles:
    """The tiles of rows that belong to the given groups."""
    return RowTiles(*(torch.from_numpy(each) for each in tiles_of(groups)))


class ExpertAdapterCase:
    """Two adapters on experts."""

    def __init__(self, experts: int, size: int, inner: int, dtype: torch.dtype, tokens: int) -> None:
        self.experts = experts
        self.gate_up = _matrices(2 * experts, size, (inner, inner), dtype, 1)
        self.down = _matrices(2 * experts, inner, (size,), dtype, 5)
        self.adapters = torch.tensor([-1, 0, 1, 1, 0]).repeat(tokens)[:tokens].to(torch.int32)

    def given(self) -> ExpertAdapters:
        """The adapters in the form that products take."""
        return ExpertAdapters(self.adapters, self.gate_up, self.down)

    def merged(self, weights: torch.Tensor, matrices: LowRankMatrices, adapter: int) -> torch.Tensor:
        """[experts, outputs, size] with what an adapter adds, in float64."""
        merged = weights.double()
        for expert in range(self.experts if adapter >= 0 else 0):
            group = adapter * self.experts + expert
            for part, rank in enumerate(matrices.ranks[group].tolist()):
                columns = slice(*matrices.starts[part : part + 2].tolist())
                up = matrices.up[group, :rank, columns].double()
                merged[expert, columns] += up.T @ matrices.down[group, part, :rank].double()
        return merged


def _matrices(groups: int, size: int, outputs: tuple[int, ...], dtype: torch.dtype, seed: int) -> LowRankMatrices:
    rank, starts = 6, torch.tensor([0, *outputs]).cumsum(0)
    down = normal(groups, len(outputs), rank, size, dtype=dtype, seed=seed) / size**0.5
    up = normal(groups, rank, sum(outputs), dtype=dtype, seed=seed + 1) / rank
    ranks = torch.arange(groups * len(outputs)).remainder(rank + 1).view(groups, -1).to(torch.int32)
    return LowRankMatrices(down, up, ranks, starts)
