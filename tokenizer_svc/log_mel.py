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

    def __init__(
        self, num_mels: int, rate: int, num_fft: int, hop: int, greatest: float | None = None,
        torchaudio_window: int = 0,
    ) -> None:  # fmt: skip
        """
        Args:
            num_mels: bands of a spectrogram.
            rate: samples a second.
            num_fft: samples that a frame looks at.
            hop: samples from a frame to the next.
            greatest: power of ten that counts as the greatest one; None means that of the samples themselves.
            torchaudio_window: how many of these samples, in their middle, a frame really sees, for spectrograms as
                torchaudio makes them, with other bands and one more frame; 0 means Whisper's.
        """
        self._num_fft, self._hop, self._greatest = num_fft, hop, greatest
        self._num_more = int(torchaudio_window > 0)
        norm, scale = (None, "htk") if torchaudio_window else ("slaney", "slaney")
        self._filters: Floats = mel_filter_bank(
            num_frequency_bins=1 + num_fft // 2, num_mel_filters=num_mels, min_frequency=0.0,
            max_frequency=_MAX_FREQUENCY, sampling_rate=rate, norm=norm, mel_scale=scale,
        ).astype(np.float32)  # fmt: skip
        size = torchaudio_window or num_fft
        window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)).astype(np.float32)
        self._window: Floats = np.pad(window, (num_fft - size) // 2)

    def of(self, samples: Floats) -> Floats:
        """The spectrogram [mels, frames] of samples, of which there is at least a frame's hop."""
        num_frames = len(samples) // self._hop + self._num_more
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
