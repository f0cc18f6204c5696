"""Positions of tokens in models whose images turn keys and queries by time, row and column.

M-RoPE (Wang et al. 2024, Qwen2-VL): each token has three positions. They are equal for text; those of an image or a
video are the places in its grid, after the position of the text before it. Text goes on after the largest of them.

XD-RoPE (HunYuan): positions of text are places in the sequence, and each token has one more of these before the three,
also those of images. The others of an image are the places in its grid, from zero on, and its number in the sequence.
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
    num_positions: int = 0  # of a token with XD-RoPE; 0 with M-RoPE

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


@dataclass(frozen=True, kw_only=True)
class SoundGrid(PlacedGrid):
    """The grid of a video among whose tokens are those of its sound, which have positions as if they were text."""

    is_sound: npt.NDArray[np.bool_]  # [tokens]
    # Whether the tokens before and after it, where audio begins and ends, have the positions of those beyond them.
    shares_ends: bool

    @property
    def size(self) -> int:
        """See PlacedGrid."""
        return len(self.is_sound) + 2 * self.shares_ends

    @property
    def places(self) -> npt.NDArray[np.int64]:
        """See PlacedGrid."""
        found = np.empty((3, len(self.is_sound)), np.int64)
        found[:, ~self.is_sound] = super().places
        found[:, self.is_sound] = np.arange(self.is_sound.sum())
        if not self.shares_ends:
            return found
        return np.pad(found, ((0, 0), (1, 1)), constant_values=(-1, found[:, -1].max() + 1))

    @property
    def extent(self) -> int:
        """See PlacedGrid. It ends with the last token, whether that is seen or heard."""
        return int(self.places[:, -1].max()) + (not self.shares_ends)


@dataclass(frozen=True)
class RotaryPositions:
    """The positions of each of a sequence's tokens: three with M-RoPE."""

    first: npt.NDArray[np.int64]  # [positions, tokens]: up to the last image's end
    offset: int  # of all positions of later tokens, from their places in the sequence

    def of(self, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The positions [positions, places] of tokens at these places in the sequence."""
        known = self.first.shape[1]
        return np.where(places < known, self.first[:, np.minimum(places, known - 1)], places + self.offset)

    def greatest(self, num_tokens: int) -> int:
        """The greatest position of a sequence of so many tokens."""
        return max(int(self.first.max()), num_tokens - 1 + self.offset)


def rotary_positions(grids: Sequence[PlacedGrid]) -> RotaryPositions:
    """The positions in a sequence with images, at least one.

    Args:
        grids: in the order of their places.
    """
    if grids[0].num_positions:
        return _numbered(grids)
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


def _numbered(grids: Sequence[PlacedGrid]) -> RotaryPositions:
    """The positions with XD-RoPE."""
    found = np.tile(np.arange(grids[-1].start + grids[-1].size), (grids[0].num_positions, 1))
    for number, grid in enumerate(grids):
        _, rows, columns = grid.places
        found[-3, grid.start : grid.start + grid.size] = columns
        found[-2, grid.start : grid.start + grid.size] = rows
        found[-1, grid.start : grid.start + grid.size] = number
    return RotaryPositions(found, 0)
