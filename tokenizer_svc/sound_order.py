"""The order of a video's tokens and those of its sound."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class SoundOrder:
    """How the tokens of a video's frames and those of its sound stand among each other in prompts of a model.

    Attributes:
        tokens_per_second: of the sound.
        chunk: number of tokens of sound that stand together, after all frames that are seen meanwhile; 0 for models
            where each frame stands before the first token of sound that is not earlier.
    """

    tokens_per_second: float
    chunk: int = 0

    def is_sound(self, seconds: npt.NDArray[np.float64], num_sound: int) -> npt.NDArray[np.bool_]:
        """Which of the tokens are the sound's: [tokens].

        Args:
            seconds: when each of the frames' tokens is seen, ascending: [tokens].
            num_sound: tokens of the sound.
        """
        times, sound = seconds * self.tokens_per_second, np.arange(num_sound)
        keys = [self._chunks(times), self._chunks(sound)] if self.chunk else [times, sound]
        return np.argsort(np.concatenate(keys), kind="stable") >= len(times)  # of equal keys, the first one first

    def _chunks(self, times: npt.NDArray[Any]) -> list[int]:
        """The chunk of each token: as in Transformers, that of the token before it or the next one, however late it
        is."""
        numbers = itertools.accumulate(
            times.tolist(), lambda number, time: number + (time >= (number + 1) * self.chunk), initial=0
        )
        return [*numbers][1:]
