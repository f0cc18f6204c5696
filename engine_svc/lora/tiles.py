"""The rows of a batch by adapter, in buffers that stay where they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_svc.ops.base import TILE_ROWS, RowTiles
from engine_svc.transfer import to_device


class TileBuffers:
    """Into which each step's tiles are copied, so that a recorded forward pass finds them in its place."""

    def __init__(self, max_rows: int, num_groups: int, device: torch.device) -> None:
        self._num_groups, self._device = num_groups, device
        most = most_tiles(max_rows, num_groups)
        self._rows = torch.full((most, TILE_ROWS), -1, dtype=torch.int32, device=device)
        self._groups = torch.full((most,), -1, dtype=torch.int32, device=device)

    def fill(self, groups: npt.NDArray[Any], padded_rows: int | None = None) -> RowTiles:
        """The tiles of a batch, valid until the next ones.

        Args:
            groups: of each row; -1 of those that have none.
            padded_rows: as many tiles as any batch of so many rows may need; None: no more than this one needs.
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
    """How many tiles so many rows may take."""
    return -(-num_rows // TILE_ROWS) + min(num_groups, num_rows)


def tiles_of(groups: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """See RowTiles.

    Args:
        groups: of each row; -1 of those that have none.
    """
    present = np.flatnonzero(groups >= 0)
    order = present[np.argsort(groups[present], kind="stable")]
    found, first, counts = np.unique(groups[order], return_index=True, return_counts=True)
    tiles = -(-counts // TILE_ROWS)
    rows = np.full((int(tiles.sum()), TILE_ROWS), -1, np.int32)
    places = np.arange(len(order)) + np.repeat((np.cumsum(tiles) - tiles) * TILE_ROWS - first, counts)
    rows.reshape(-1)[places] = order
    return rows, np.repeat(found, tiles).astype(np.int32)
