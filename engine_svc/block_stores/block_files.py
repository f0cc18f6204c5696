"""Files of KV blocks in a folder that several workers share."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

# Parts of the limit: how much is written from one look at the whole folder to the next, and how full it may be after.
_BETWEEN_LOOKS = 1 / 32
_FULL = 1 - 2 * _BETWEEN_LOOKS
_MOST_WRITING_NS = 60 * 10**9  # from a block's computation until all ranks have written it
# A checksum at the end: after a crash of its machine, a file may have its size and not its contents.
_SUM_BYTES = 4


class BlockFiles:
    """One rank's files. A file's modification time tells when its block was computed, its access time the last use."""

    def __init__(self, folder: Path, rank: int, most_bytes: float) -> None:
        """
        Args:
            folder: has no other files, as any of them may be deleted.
            most_bytes: of all files in the folder, by whomever.
        """
        self._folder = folder
        self._rank = rank
        self._most_bytes = most_bytes
        self._turn = threading.Lock()
        self._unseen = most_bytes  # bytes written since the last look at the folder: the first file calls for one

    def read(self, place: str, num_bytes: int) -> bytearray | None:
        """Returns a block of this size; None if there is no such file, or not the whole of it."""
        content = self._read(self._path(place), num_bytes)
        if content is None:
            self._give_up(place)
        return content

    def _give_up(self, place: str) -> None:
        """Makes a block that cannot be read unfindable, so that it is saved anew, unless a rank may be still writing.

        By the first rank's file, workers tell whether there is a block.
        """
        first = self._path(place, 0)
        with contextlib.suppress(OSError):
            if time.time_ns() - first.stat().st_mtime_ns > _MOST_WRITING_NS:
                first.unlink()

    def _read(self, path: Path, num_bytes: int) -> bytearray | None:
        content = bytearray(num_bytes)
        try:
            with path.open("rb") as file:
                stat = os.fstat(file.fileno())
                if stat.st_size != num_bytes + _SUM_BYTES or file.readinto(content) != num_bytes:
                    return None
                if file.read() != zlib.crc32(content).to_bytes(_SUM_BYTES, "big"):
                    return None
        except OSError:
            return None
        with contextlib.suppress(OSError):  # who may only read leaves no trace
            os.utime(path, ns=(time.time_ns(), stat.st_mtime_ns))
        return content

    def raw(self, place: str) -> bytes | None:
        """Returns a whole file, with the checksum at its end, for `write_raw`; None if there is none."""
        try:
            return self._path(place).read_bytes()
        except OSError:
            return None

    def write_raw(self, place: str, parts: Sequence[bytes], computed_ns: int) -> None:
        """Writes the parts of what `raw` has returned on another machine. Whoever reads it checks it.

        Args:
            computed_ns: see `write`.

        Raises:
            OSError: it cannot be written.
        """
        self._write(self._path(place), parts, computed_ns)

    def write(self, place: str, parts: Iterable[bytes | memoryview], computed_ns: int) -> None:
        """Writes a block, which others see once it is complete.

        Args:
            parts: the block's bytes, in order.
            computed_ns: when it was computed, since the epoch.

        Raises:
            OSError: it cannot be written.
        """
        self._write(self._path(place), _with_sum(parts), computed_ns)

    def _write(self, path: Path, parts: Iterable[bytes | memoryview], computed_ns: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f"{uuid.uuid4().hex}.partial")
        try:
            with partial.open("wb") as file:
                for part in parts:
                    file.write(part)
                num_bytes = file.tell()
            os.utime(partial, ns=(time.time_ns(), computed_ns))
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
        self._make_room(num_bytes)

    def _path(self, place: str, rank: int | None = None) -> Path:
        return self._folder / f"{place}.{self._rank if rank is None else rank}"

    def _make_room(self, num_bytes: int) -> None:
        """Now and then, deletes the files that were used least recently, if there are too many.

        Args:
            num_bytes: size of the file that has just been written.
        """
        with self._turn:
            self._unseen += num_bytes
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


def _with_sum(parts: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yields the parts, and their checksum."""
    total = 0
    for part in parts:
        yield part
        total = zlib.crc32(part, total)
    yield total.to_bytes(_SUM_BYTES, "big")


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yields all files below a folder; those that go meanwhile are left out."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path))
            else:
                with contextlib.suppress(OSError):
                    yield Path(entry.path), entry.stat(follow_symlinks=False)
