"""A network that misbehaves: a TCP proxy in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class TcpProxy:
    """Passes on what comes, as its fields say at the moment."""

    def __init__(self, target: str) -> None:
        self.address = ""
        self.num_connections = 0
        # So much is passed on at once; seconds that each such piece takes on its way.
        self.piece_bytes = 1 << 16
        self.delay_seconds = 0.0
        self._host, _, self._port = target.rpartition(":")
        self._open = asyncio.Event()
        self._open.set()

    def swallow(self) -> None:
        """Nothing comes through any more, and nobody is told: as when a cable is cut."""
        self._open.clear()

    def heal(self) -> None:
        """All comes through again, what was sent meanwhile first: the ends have kept it."""
        self._open.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self.num_connections += 1
        there, back = await asyncio.open_connection(self._host, int(self._port))
        ways = [asyncio.create_task(self._pass(*way)) for way in ((reader, back), (there, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            back.close()
            writer.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(self.piece_bytes):
            await asyncio.sleep(self.delay_seconds)
            await self._open.wait()
            writer.write(data)
            await writer.drain()


@contextlib.asynccontextmanager
async def proxy_to(target: str) -> AsyncIterator[TcpProxy]:
    """
    Args:
        target: host:port.
    """
    proxy = TcpProxy(target)
    connections: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            connections.add(task)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            await proxy.serve(reader, writer)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    proxy.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        server.close()
        for task in connections:
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
