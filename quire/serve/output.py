"""Reads a child process's output line by line."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable

_LAST_WORDS_SECONDS = 1.0
_MAX_LINE_BYTES = 2**20


class Output:
    """A pipe of our own for a child's output: the child's descendants may hold its write end open longer than the child
    lives.

    Order of calls: `open`, start the child with `write_end`, `release`, `drain` once it has ended, `close`.
    """

    def __init__(self, write_end: int, pipe: asyncio.BaseTransport, copying: asyncio.Task[None]) -> None:
        self.write_end = write_end
        self._pipe = pipe
        self._copying = copying

    @staticmethod
    async def open(take: Callable[[str], None]) -> Output:
        """Creates a pipe; `take` receives each line."""
        read_end, write_end = os.pipe()
        lines = asyncio.StreamReader(_MAX_LINE_BYTES)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(read_end, "rb")
        )
        return Output(write_end, pipe, asyncio.create_task(_copy(lines, take)))

    def release(self) -> None:
        """Closes the write end in this process; the child has its own copy."""
        if self.write_end >= 0:
            os.close(self.write_end)
        self.write_end = -1

    async def drain(self) -> None:
        """Reads the last output of a child that has ended."""
        await asyncio.wait([self._copying], timeout=_LAST_WORDS_SECONDS)

    def close(self) -> None:
        """Releases all resources."""
        self.release()
        self._copying.cancel()
        self._pipe.close()


async def _copy(lines: asyncio.StreamReader, take: Callable[[str], None]) -> None:
    while not lines.at_eof():
        with contextlib.suppress(ValueError):  # skips an overlong line
            if line := await lines.readline():
                take(line.decode(errors="replace").rstrip("\n"))
