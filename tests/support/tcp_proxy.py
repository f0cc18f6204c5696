"""A network that misbehaves: a TCP proxy in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator


class TcpProxy:
    """Forwards data as its fields say, which may change at any time."""

    def __init__(self, target: str) -> None:
        self.address = ""
        self.num_connections = 0
        # Most bytes that are forwarded at once; seconds that each piece takes.
        self.piece_bytes = 1 << 16
        self.delay_seconds = 0.0
        self._host, _, self._port = target.rpartition(":")
        self._open = asyncio.Event()
        self._open.set()

    def swallow(self) -> None:
        """Stops forwarding silently, as when a cable is cut."""
        self._open.clear()

    def heal(self) -> None:
        """Resumes forwarding, beginning with what was sent meanwhile, which the ends have kept."""
        self._open.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection."""
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
