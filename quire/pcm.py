"""Recordings as samples of 16 bits: as WAV files, and where long ones are cut: in quiet places, so that no word is."""

from __future__ import annotations

import io
import wave
from typing import Final

import numpy as np
import numpy.typing as npt

Pcm = npt.NDArray[np.int16]
SAMPLE_BYTES = 2
LIVE_RATE: Final = 16_000  # samples a second of audio that comes while it is spoken

WINDOW_SECONDS = 0.1  # whose loudness counts
_LAST_SECONDS, _LAST_SHARE = 1.0, 0.25  # of a piece that may be cut off: the shorter of both


def piece_ends(samples: Pcm, rate: int, most_seconds: float) -> list[int]:
    """Cuts a recording into pieces that follow one another without gaps.

    Args:
        samples: more than one piece's, and by at least two windows.
        rate: samples a second.
        most_seconds: of a piece; at least one.

    Returns: where each piece ends; the last one at the recording's end.
    """
    most, window = int(most_seconds * rate), int(WINDOW_SECONDS * rate)
    last = int(min(_LAST_SECONDS, _LAST_SHARE * most_seconds) * rate)
    ends, start = [], 0
    while len(samples) - start > most:
        # The last piece has at least a window, as some models find no tokens in less.
        latest = min(start + most, len(samples) - window)
        start = latest - last + _quietest(samples[latest - last : latest], window)
        ends.append(start)
    return [*ends, len(samples)]


def wav_file(samples: bytes | memoryview, rate: int) -> bytes:
    """A WAV file of one channel.

    Args:
        samples: little-endian.
        rate: samples a second.
    """
    file = io.BytesIO()
    with wave.open(file, "wb") as output:
        output.setnchannels(1)
        output.setsampwidth(SAMPLE_BYTES)
        output.setframerate(rate)
        output.writeframes(samples)
    return file.getvalue()


def _quietest(samples: Pcm, window: int) -> int:
    """The middle of the window with the least energy, the last of several."""
    energy = np.cumsum(np.square(samples, dtype=np.int64))
    windows = energy[window - 1 :] - np.concatenate([[0], energy[:-window]])
    return len(windows) - 1 - int(np.argmin(windows[::-1])) + window // 2
