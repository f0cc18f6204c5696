"""The supervisor's socket, over which processes of its stack ask for more ranks or fewer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec

from quire.errors import InvalidRequest, QuireError
from quire.supervised import CREDENTIALS
from quire.supervision import MAX_BYTES, ScaleAnswer, ScaleRequest

_READ_SECONDS = 10.0

Answering = Callable[[ScaleRequest], Awaitable[ScaleAnswer]]


@contextlib.asynccontextmanager
async def control_socket(path: str, answering: Answering) -> AsyncIterator[None]:
    """Listens at `path` while the context lasts."""
    live: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_serve(reader, writer, answering))
        live.add(task)
        task.add_done_callback(live.discard)

    server = await asyncio.start_unix_server(connected, path, limit=MAX_BYTES)
    try:
        yield
    finally:
        server.close()
        for task in list(live):
            task.cancel()
        await asyncio.gather(*live, return_exceptions=True)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answering: Answering) -> None:
    """Answers one request; carrying it out continues even if the caller disconnects."""
    try:
        with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError):  # a TimeoutError is an OSError
            _check_peer(writer)
            line = await asyncio.wait_for(reader.readuntil(), _READ_SECONDS)
            answer = await _answer(line, answering)
            writer.write(msgspec.json.encode(answer) + b"\n")
            await writer.drain()
    finally:
        writer.close()


def _check_peer(writer: asyncio.StreamWriter) -> None:
    """Checks that the peer runs as the same user.

    Raises:
        PermissionError: it is another user's process, which can see the socket's name.
    """
    told = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    if CREDENTIALS.unpack(told)[1] != os.getuid():
        raise PermissionError


async def _answer(line: bytes, answering: Answering) -> ScaleAnswer:
    try:
        try:
            request = msgspec.json.decode(line, type=ScaleRequest)
        except msgspec.DecodeError as error:
            raise InvalidRequest(str(error)) from error
        return await answering(request)
    except QuireError as error:
        return ScaleAnswer(reason=error.reason, message=error.message)
