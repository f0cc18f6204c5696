"""What a benchmark starts ends with it, also where it is told to end before it is done."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

_STOP_SECONDS = 60.0


@contextmanager
def unwinding() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise as Ctrl-C does, so that `finally` is come to; else they end the process there
    and then. Only in the main thread."""
    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    before = [signal.signal(number, _end) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Tells it to end; what is left of its session after a while, or when this is cut short, is killed.

    By SIGTERM: what a shell has put into the background ignores SIGINT, and so does what it starts.
    """
    process.terminate()
    try:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)
