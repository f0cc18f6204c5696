"""A temporary folder for the processes of one stack, which is always removed eventually, however the stack ends."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

_PREFIX = "quire-gateways-"


@contextmanager
def held_folder() -> Iterator[str]:
    """Creates a folder, and removes it at the end. It is locked meanwhile: unlocked ones were left by processes that
    were killed, and are removed first."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        if (held := _lock(left)) is not None:
            _remove(left, held)
    while (held := _lock(folder := Path(tempfile.mkdtemp(prefix=_PREFIX)))) is None:
        pass  # another process has just removed it
    try:
        yield str(folder)
    finally:
        _remove(folder, held)


def _remove(folder: Path, held: int) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    os.close(held)


def _lock(folder: Path) -> int | None:
    """Opens and locks a folder until the returned descriptor is closed, however the process ends; None if it is not
    ours, locked, or gone."""
    with suppress(OSError), ExitStack() as failed:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        failed.callback(os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(descriptor)
        if found.st_uid == os.geteuid() and os.path.samestat(found, folder.stat()):
            failed.pop_all()
            return descriptor
    return None
