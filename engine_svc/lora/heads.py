"""Adapters on per-head matrices that are used in two parts, one of them transposed.

See models/latent_attention.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from engine_svc.lora.matrices import LowRank, zeros
from engine_svc.lora.settings import AdapterSettings
from engine_svc.ops.base import Ops, RowTiles

# Returns the tiles of the current batch: rows are (token, head), groups (adapter, head). None if no adapter runs.
Tiles = Callable[[], RowTiles | None]


class AdaptedHeads:
    """See HeadAdapters. The heads share the matrix at the inputs, and each has its own matrices at the outputs."""

    def __init__(
        self, heads: int, sizes: tuple[int, int, int], settings: AdapterSettings, ops: Ops, device: torch.device,
        tiles: Tiles,
    ) -> None:  # fmt: skip
        """
        Args:
            sizes: the number of a head's rows that are used transposed, of its other rows, and of inputs.
        """
        self._ops, self._heads, self._sizes, self._tiles = ops, heads, sizes, tiles
        count, rank, dtype = settings.max_adapters, settings.max_rank, settings.dtype
        first, others, inputs = sizes
        self._inputs = zeros((count, 1, rank, inputs), dtype, device)
        self._first = zeros((count * heads, 1, rank, first), dtype, device)
        self._others = zeros((count * heads, 1, rank, others), dtype, device)
        self._ranks = torch.zeros((count * heads, 1), dtype=torch.int32, device=device)
        self._shared_ranks = torch.zeros((count, 1), dtype=torch.int32, device=device)
        self._starts = {size: torch.tensor([0, size], device=device) for size in (others, inputs)}

    def write(self, index: int, found: Mapping[str, LowRank]) -> None:
        """Writes the matrices of the adapter with this index, counted from 0."""
        rank = len(found[""].down) if "" in found else 0
        own = slice(index * self._heads, (index + 1) * self._heads)
        if rank:
            by_head = found[""].up.view(rank, self._heads, -1).transpose(0, 1)
            first, others = by_head.split(self._sizes[:2], -1)
            self._first[own, 0, :rank], self._others[own, 0, :rank] = first, others
            self._inputs[index, 0, :rank] = found[""].down
        self._ranks[own], self._shared_ranks[index] = rank, rank

    def to_inputs(self, hidden: torch.Tensor, output: torch.Tensor) -> None:
        """See HeadAdapters.to_inputs."""
        tiles = self._tiles()
        if tiles is not None:
            rows, inputs = _rows(hidden), self._sizes[2]
            sums = self._ops.shrink(rows, self._first, self._ranks, tiles)
            self._ops.expand(
                sums, self._inputs[:, 0], self._shared_ranks, self._starts[inputs], tiles, _rows(output),
                sharing=self._heads,
            )  # fmt: skip

    def to_rows(self, hidden: torch.Tensor, output: torch.Tensor) -> None:
        """See HeadAdapters.to_rows."""
        tiles = self._tiles()
        if tiles is not None:
            others = self._sizes[1]
            sums = self._ops.shrink(_rows(hidden), self._inputs, self._shared_ranks, tiles, sharing=self._heads)
            self._ops.expand(sums, self._others[:, 0], self._ranks, self._starts[others], tiles, _rows(output))


def _rows(values: torch.Tensor) -> torch.Tensor:
    """[tokens, heads, size] → [tokens * heads, size], a view of the same memory."""
    return values.view(-1, values.shape[2])
