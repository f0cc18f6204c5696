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
    kept: npt.NDArray[np.int64] | None = None  # indices of the embeddings that the prompt has; None for all

    @property
    def size(self) -> int:
        """Number of embeddings that the prompt has."""
        return self.frames * self.rows * self.columns if self.kept is None else len(self.kept)

    @property
    def places(self) -> npt.NDArray[np.int64]:
        """The three positions [3, size] of the embeddings, from 0 on."""
        times, rows, columns = np.indices((self.frames, self.rows, self.columns)).reshape(3, -1)
        found = np.stack([self._times[times], rows, columns])
        return found if self.kept is None else found[:, self.kept]

    @property
    def extent(self) -> int:
        """How far the positions go, also of embeddings that are not kept."""
        return max(int(self._times[-1]) + 1, self.rows, self.columns)

    @property
    def _times(self) -> npt.NDArray[np.int64]:
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
        found.append(grid.places + position)
        position += grid.extent
        place = grid.start + grid.size
    return RotaryPositions(np.concatenate(found, axis=1), position - place)
