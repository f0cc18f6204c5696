"""A file lock between processes."""

from __future__ import annotations

import contextlib
import fcntl
import time
from collections.abc import Iterator
from pathlib import Path

_POLL_SECONDS = 0.1


@contextlib.contextmanager
def locked(file: Path, seconds: float) -> Iterator[None]:
    """Holds the lock of a file, which is created if missing; continues without the lock after `seconds` of waiting.

    Raises:
        OSError: the file cannot be created.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + seconds
    with file.open("w") as opened:  # closing it unlocks it
        while not _try(opened.fileno()) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        yield


def _try(descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
