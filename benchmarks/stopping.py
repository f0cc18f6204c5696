"""Makes sure that what a benchmark starts ends with it, even if the benchmark is told to end early."""

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
    """Context in which SIGTERM and SIGHUP raise an exception, like Ctrl-C, so that `finally` blocks run.

    Without it, they end the process immediately. Only for the main thread.
    """
    numbers = [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]
    before = [signal.signal(number, _end) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def stop(process: subprocess.Popen[bytes]) -> None:
    """Tells a process to end; kills what is left of its session after a while, or if this call is interrupted.

    Uses SIGTERM, because processes in a shell's background, and their children, ignore SIGINT.
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
