"""Shows a benchmark's progress on a terminal."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_SECONDS = 0.2
_WIDTH = 30


class Progress:
    """A progress line that is redrawn a few times a second; nothing if not wanted, or if the stream is no terminal."""

    def __init__(self, total: int, *, shown: bool, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._shown = shown and self._stream.isatty()
        self._total, self._done = total, 0
        self._begin = self._last = time.monotonic()

    def advance(self) -> None:
        """Counts one more finished request."""
        self._done += 1
        now = time.monotonic()
        if self._shown and (now - self._last >= _SECONDS or self._done == self._total):
            self._last = now
            filled = _WIDTH * self._done // self._total
            rate = self._done / max(now - self._begin, 1e-9)
            bar = f"{'█' * filled}{' ' * (_WIDTH - filled)}"
            self._stream.write(f"\r|{bar}| {self._done}/{self._total} {rate:.1f}/s")
            self._stream.flush()

    def close(self) -> None:
        """Ends the line."""
        if self._shown and self._done:
            self._stream.write("\n")
