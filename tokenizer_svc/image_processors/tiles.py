"""Into how many tiles an image is cut."""

from __future__ import annotations

import math


def grid_of_tiles(height: int, width: int, side: int, most: int, *, enlarge: bool = False) -> tuple[int, int]:
    """Rows and columns of the tiles that lose the least of an image and, among these, enlarge it the least.

    Args:
        side: of a tile, in pixels.
        most: tiles.
        enlarge: as far as possible instead.

    Raises:
        ValueError: no tiles are allowed.
    """
    if most < 1:
        raise ValueError(f"max_patches must be at least 1, not {most}")
    scales = {
        (rows, columns): min(rows * side / height, columns * side / width)
        for rows in range(1, most + 1)
        for columns in range(1, most // rows + 1)
    }
    lossless = [scale for scale in scales.values() if scale >= 1]
    wanted = max(scales.values()) if enlarge or not lossless else min(lossless)
    return min((grid for grid, scale in scales.items() if scale == wanted), key=math.prod)
