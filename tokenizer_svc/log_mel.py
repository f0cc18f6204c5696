"""Log-mel spectrograms, as Whisper's feature extractor makes them.

Transformers' own without torch is many times slower.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from transformers.audio_utils import mel_filter_bank

Floats = npt.NDArray[np.float32]

_MAX_FREQUENCY = 8000.0  # in Hz
_FRAMES_AT_ONCE = 3000  # which limits the memory for spectra
_FLOOR, _RANGE = 1e-10, 8.0  # the least power; powers of ten below the greatest that are kept


class LogMel:
    """Makes the spectrograms of a model."""

    def __init__(self, num_mels: int, rate: int, num_fft: int, hop: int, greatest: float | None = None) -> None:
        """
        Args:
            num_mels: bands of a spectrogram.
            rate: samples a second.
            num_fft: samples that a frame looks at.
            hop: samples from a frame to the next.
            greatest: power of ten that counts as the greatest one; None means that of the samples themselves.
        """
        self._num_fft, self._hop, self._greatest = num_fft, hop, greatest
        self._filters: Floats = mel_filter_bank(
            num_frequency_bins=1 + num_fft // 2, num_mel_filters=num_mels, min_frequency=0.0,
            max_frequency=_MAX_FREQUENCY, sampling_rate=rate, norm="slaney", mel_scale="slaney",
        ).astype(np.float32)  # fmt: skip
        self._window: Floats = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(num_fft) / num_fft)).astype(np.float32)

    def of(self, samples: Floats) -> Floats:
        """The spectrogram [mels, frames] of samples, of which there is at least a frame's hop."""
        num_frames = len(samples) // self._hop
        padded = np.pad(samples, self._num_fft // 2, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(padded, self._num_fft)[:: self._hop][:num_frames]
        found = np.empty((self._filters.shape[1], num_frames), np.float32)
        for start in range(0, num_frames, _FRAMES_AT_ONCE):
            some = slice(start, start + _FRAMES_AT_ONCE)
            spectra = np.fft.rfft(frames[some] * self._window)
            powers = (spectra.real**2 + spectra.imag**2) @ self._filters
            found[:, some] = np.log10(np.maximum(powers, _FLOOR)).T
        greatest = found.max() if self._greatest is None else self._greatest
        return np.asarray((np.maximum(found, greatest - _RANGE) + 4.0) / 4.0, np.float32)
