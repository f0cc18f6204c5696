"""Audio of 24,000 samples a second, which OpenAI's clients send, as one of 16,000, while it arrives."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from quire.pcm import SAMPLE_BYTES

_TAKEN, _REACH = 3, 24  # of three samples, two are made, each from this many on either side of its place
_CUTOFF = 0.62  # of the highest frequency before; 2/3 remain, and what lies above must be gone
_WINDOW = 2 * _REACH + 2


def _taps(place: float) -> npt.NDArray[np.float64]:
    """Weights of a window's samples in the one at `place`: a low-pass filter, under Hann's window."""
    distance = np.arange(_WINDOW) - place
    near = np.where(np.abs(distance) < _REACH, np.cos(np.pi * distance / (2 * _REACH)) ** 2, 0)
    weights = np.sinc(_CUTOFF * distance) * near
    found: npt.NDArray[np.float64] = weights / weights.sum()
    return found


class Resampler:
    """Converts one stream of samples; whatever the pieces are in which it comes, the result is the same."""

    def __init__(self) -> None:
        self._taps = np.stack([_taps(_REACH), _taps(_REACH + _TAKEN / 2)], axis=1).astype(np.float32)
        self._begin()

    def _begin(self) -> None:
        self._kept = np.zeros(_REACH, np.int16)  # what the next sample needs, and whole windows do not have yet

    def add(self, samples: bytes) -> bytes:
        """Returns what the samples, little-endian ones of 16 bits, complete."""
        heard = np.concatenate([self._kept, np.frombuffer(samples, "<i2")])
        if len(heard) < _WINDOW:
            self._kept = heard
            return b""
        windows = np.lib.stride_tricks.sliding_window_view(heard, _WINDOW)[::_TAKEN]
        self._kept = heard[_TAKEN * len(windows) :]
        made = np.rint(windows.astype(np.float32) @ self._taps)
        return bytes(np.clip(made, -(2**15), 2**15 - 1).astype("<i2").data)

    def end(self) -> bytes:
        """Returns the rest; the next samples begin another stream."""
        rest = self.add(bytes(SAMPLE_BYTES * (_WINDOW - _REACH))) if len(self._kept) > _REACH else b""
        self._begin()
        return rest
