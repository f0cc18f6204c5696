"""Whether a worker whose session broke has died, or was only out of reach.

A frozen process, a network that fails and a session that the worker ends all look alike to a client. What counts is
proof: at the worker's address nobody listens any more, or another process answers.
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
# What is found out later than this says nothing of the moment at which the session broke.
_MOST_SECONDS = 10.0


async def has_died(address: str, instance_id: str, ask: Callable[[], Awaitable[str]]) -> bool:
    """Returns once it is known; False as well where it cannot be found out soon.

    Args:
        address: host:port of the worker.
        instance_id: of the process that its session was with; empty where that never told.
        ask: the instance id of whoever answers there now; raises AioRpcError where nobody does.
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
    """Whether every machine of that name is there and has nobody at the port."""
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
    except OSError:  # TimeoutError among them
        return False
    writer.close()
    return False
