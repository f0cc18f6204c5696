"""Audio that arrives in pieces of any length, and is cut into segments to transcribe."""

from __future__ import annotations

import base64
import binascii
import itertools

import numpy as np

from quire.errors import InvalidRequest
from quire.pcm import LIVE_RATE, SAMPLE_BYTES, WINDOW_SECONDS, piece_ends

_SHOWN = 50


class LiveAudio:
    """Samples that are in no segment yet."""

    def __init__(self, segment_seconds: float) -> None:
        """
        Args:
            segment_seconds: after which a segment is cut, at a quiet place; at least one.
        """
        self._seconds = segment_seconds
        # A cut needs something after it: see `piece_ends`.
        self._most_bytes = int((segment_seconds + 2 * WINDOW_SECONDS) * LIVE_RATE) * SAMPLE_BYTES
        self._samples = bytearray()

    def append(self, samples: bytes) -> list[bytes]:
        """Adds samples, and returns the segments that are complete."""
        self._samples += samples
        return self._cut() if len(self._samples) > self._most_bytes else []

    def take(self) -> bytes:
        """Returns the samples that are left; there are none afterwards."""
        taken = bytes(self._samples)
        self._samples.clear()
        return taken

    def _cut(self) -> list[bytes]:
        whole = self.take()
        ends = piece_ends(np.frombuffer(whole, "<i2"), LIVE_RATE, self._seconds)
        places = [place * SAMPLE_BYTES for place in (0, *ends)]
        *segments, rest = (whole[start:end] for start, end in itertools.pairwise(places))
        self._samples += rest
        return segments


def samples_of(audio: str) -> bytes:
    """The samples in an event.

    Args:
        audio: base64 of 16-bit samples.

    Raises:
        InvalidRequest: it is not that, or empty.
    """
    try:
        found = base64.b64decode(audio, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidRequest(
            f"audio is {audio[:_SHOWN]!r}, which is no base64. Send samples of 16 bits (PCM16, mono) in base64.",
            parameter="audio",
        ) from None
    if not found or len(found) % SAMPLE_BYTES:
        raise InvalidRequest(
            f"audio has {len(found)} bytes; expected samples of {SAMPLE_BYTES} bytes each, and at least one.",
            parameter="audio",
        )
    return found
