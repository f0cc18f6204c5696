"""Tiles of a batch's rows by adapter, in buffers at fixed addresses."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.ops.base import TILE_ROWS, RowTiles
from engine_svc.transfer import to_device


class TileBuffers:
    """Buffers that each step's tiles are copied to, so that a captured CUDA graph finds them at the same addresses."""

    def __init__(self, max_rows: int, num_groups: int, device: torch.device) -> None:
        self._num_groups, self._device = num_groups, device
        most = most_tiles(max_rows, num_groups)
        self._rows = torch.full((most, TILE_ROWS), -1, dtype=torch.int32, device=device)
        self._groups = torch.full((most,), -1, dtype=torch.int32, device=device)

    def fill(self, groups: npt.NDArray[Any], padded_rows: int | None = None) -> RowTiles:
        """The tiles of a batch, valid until the next call.

        Args:
            groups: the group of each row; -1 for none.
            padded_rows: returns as many tiles as any batch of this many rows may need. None means only as many as this
                batch needs.
        """
        rows, tile_groups = tiles_of(groups)
        count = len(tile_groups)
        self._rows[:count].copy_(to_device(rows, self._device))
        self._groups[:count].copy_(to_device(tile_groups, self._device))
        if padded_rows is None:
            return RowTiles(self._rows[:count], self._groups[:count])
        most = most_tiles(padded_rows, self._num_groups)
        self._groups[count:most].fill_(-1)
        return RowTiles(self._rows[:most], self._groups[:most])


def most_tiles(num_rows: int, num_groups: int) -> int:
    """The most tiles that `num_rows` rows can take."""
    return -(-num_rows // TILE_ROWS) + min(num_groups, num_rows)


def tiles_of(groups: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Groups rows into tiles; returns rows and groups as in RowTiles.

    Args:
        groups: the group of each row; -1 for none.
    """
    present = np.flatnonzero(groups >= 0)
    order = present[np.argsort(groups[present], kind="stable")]
    found, first, counts = np.unique(groups[order], return_index=True, return_counts=True)
    tiles = -(-counts // TILE_ROWS)
    rows = np.full((int(tiles.sum()), TILE_ROWS), -1, np.int32)
    places = np.arange(len(order)) + np.repeat((np.cumsum(tiles) - tiles) * TILE_ROWS - first, counts)
    rows.reshape(-1)[places] = order
    return rows, np.repeat(found, tiles).astype(np.int32)
