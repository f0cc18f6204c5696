"""Finds out whether a worker whose session broke has died, or was merely unreachable.

A frozen process, a failing network and a session ended by the worker all look alike to a client. Only proof counts:
nothing listens at the worker's address any more, or another process answers there.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable

import grpc

from quire.rpc.discovery import split_address

_PAUSE_SECONDS = 0.05
_CONNECT_SECONDS = 1.0
# What is found after this many seconds says nothing about the moment at which the session broke.
_MOST_SECONDS = 10.0


async def has_died(address: str, instance_id: str, ask: Callable[[], Awaitable[str]]) -> bool:
    """Returns whether the worker has died, once that is known; False also if it cannot be found out soon.

    Args:
        address: host:port of the worker.
        instance_id: id of the process that the session was with; empty if it never told.
        ask: returns the instance id of the process that answers there now; raises AioRpcError if none does.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_MOST_SECONDS):
            while True:
                if await _refuses(address):
                    return True
                with contextlib.suppress(grpc.aio.AioRpcError):
                    return bool(instance_id) and await ask() != instance_id
                await asyncio.sleep(_PAUSE_SECONDS)
    return False


async def _refuses(address: str) -> bool:
    """Whether every host that the name resolves to is up and has nothing listening on the port."""
    try:
        host, port = split_address(address)
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (ValueError, OSError):
        return False
    return all(await asyncio.gather(*(_refuses_at(str(entry[4][0]), port) for entry in found)))


async def _refuses_at(ip: str, port: int) -> bool:
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(ip, port)
    except ConnectionRefusedError:
        return True
    except OSError:  # including TimeoutError
        return False
    writer.close()
    return False
