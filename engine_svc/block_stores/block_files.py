"""Files of KV blocks in a folder that several workers share."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

# Parts of the limit: how much is written from one look at the whole folder to the next, and how full it may be after.
_BETWEEN_LOOKS = 1 / 32
_FULL = 1 - 2 * _BETWEEN_LOOKS


class BlockFiles:
    """One rank's files. A file's modification time tells when its block was computed, its access time the last use."""

    def __init__(self, folder: Path, rank: int, block_bytes: int, most_bytes: float) -> None:
        """
        Args:
            block_bytes: size of each file; others are taken for foreign ones.
            most_bytes: of all files in the folder, by whomever.
        """
        self._folder = folder
        self._suffix = f".{rank}"
        self._block_bytes = block_bytes
        self._most_bytes = most_bytes
        self._turn = threading.Lock()
        self._unseen = most_bytes  # bytes written since the last look at the folder: the first file calls for one

    def read(self, place: str) -> bytearray | None:
        """Returns a block; None if there is no such file."""
        path, content = self._path(place), bytearray(self._block_bytes)
        try:
            with path.open("rb", buffering=0) as file:
                stat = os.fstat(file.fileno())
                if stat.st_size != self._block_bytes or file.readinto(content) != self._block_bytes:
                    return None
        except OSError:
            return None
        with contextlib.suppress(OSError):  # who may only read leaves no trace
            os.utime(path, ns=(time.time_ns(), stat.st_mtime_ns))
        return content

    def write(self, place: str, parts: Iterable[bytes | memoryview], computed_ns: int) -> None:
        """Writes a block, which others see once it is complete.

        Args:
            parts: the block's bytes, in order.
            computed_ns: when it was computed, since the epoch.

        Raises:
            OSError: it cannot be written.
        """
        self._make_room()
        path = self._path(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{uuid.uuid4().hex}.partial")
        try:
            with partial.open("wb", buffering=0) as file:
                file.writelines(parts)
            os.utime(partial, ns=(time.time_ns(), computed_ns))
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise

    def _path(self, place: str) -> Path:
        return self._folder / (place + self._suffix)

    def _make_room(self) -> None:
        """Now and then, deletes the files that were used least recently, if there are too many."""
        with self._turn:
            self._unseen += self._block_bytes
            if self._unseen < self._most_bytes * _BETWEEN_LOOKS:
                return
            self._unseen = 0
        found = sorted((stat.st_atime_ns, stat.st_size, path) for path, stat in _files(self._folder))
        size = sum(size for _, size, _ in found)
        if size <= self._most_bytes * (1 - _BETWEEN_LOOKS):
            return
        for _, each, path in found:
            if size <= self._most_bytes * _FULL:
                break
            with contextlib.suppress(OSError):  # another worker was faster
                path.unlink()
            size -= each


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yields all files below a folder; those that go meanwhile are left out."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path))
            else:
                with contextlib.suppress(OSError):
                    yield Path(entry.path), entry.stat(follow_symlinks=False)
