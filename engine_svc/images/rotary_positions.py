"""Positions of tokens in models whose images turn keys and queries by time, row and column.

M-RoPE (Wang et al. 2024, Qwen2-VL): each token has three positions. They are equal for text; those of an image or a
video are the places in its grid, after the position of the text before it. Text goes on after the largest of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class PlacedGrid:
    """The grid of an image's embeddings: the position of the first one in the prompt, and its size."""

    start: int
    frames: int
    rows: int
    columns: int
    interval: float = 1.0  # from one frame's position in time to the next one's, in float32

    @property
    def size(self) -> int:
        """Number of embeddings."""
        return self.frames * self.rows * self.columns

    @property
    def times(self) -> npt.NDArray[np.int64]:
        """The positions of the frames in time, from 0 on."""
        return (np.arange(self.frames, dtype=np.float32) * np.float32(self.interval)).astype(np.int64)


@dataclass(frozen=True)
class RotaryPositions:
    """The three positions of each of a sequence's tokens."""

    first: npt.NDArray[np.int64]  # [3, tokens]: up to the last image's end
    offset: int  # of all three positions of later tokens, from their places in the sequence

    def of(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The three positions [3, places] of tokens at these places in the sequence."""
        known = self.first.shape[1]
        return np.where(places < known, self.first[:, np.minimum(places, known - 1)], places + self.offset)


def rotary_positions(grids: Sequence[PlacedGrid]) -> RotaryPositions:
    """The positions in a sequence with images, at least one.

    Args:
        grids: in the order of their places.
    """
    found: list[npt.NDArray[np.int64]] = []
    place = position = 0
    for grid in grids:
        text = np.arange(grid.start - place) + position
        position += len(text)
        found += [np.broadcast_to(text, (3, len(text)))]
        times, rows, columns = np.indices((grid.frames, grid.rows, grid.columns)).reshape(3, -1)
        found.append(np.stack([grid.times[times], rows, columns]) + position)
        position += max(int(grid.times[-1]) + 1, grid.rows, grid.columns)
        place = grid.start + grid.size
    return RotaryPositions(np.concatenate(found, axis=1), position - place)
