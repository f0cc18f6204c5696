"""Connects to hosts by addresses that are checked: each name is looked up once, here."""

from __future__ import annotations

import asyncio
import functools
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

import httpcore

from gateway.media.addresses import AllowedHosts

# (host, port) → its addresses. Raises OSError or UnicodeError if there are none.
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
_MAX_TRIED = 4


class SystemResolver:
    """The system's resolver, in threads of its own: a lookup may continue long after its caller has given up, and must
    not delay other work."""

    def __init__(self, threads: int) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="media-hosts")

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """See Resolve."""
        look_up = functools.partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        found = await asyncio.get_running_loop().run_in_executor(self._executor, look_up)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    def close(self) -> None:
        """Drops the lookups that have not begun."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Connections to allowed addresses only. The address that was checked is the one connected to, so a name cannot
    stand for another one in between."""

    def __init__(self, hosts: AllowedHosts, resolve: Resolve, inner: httpcore.AsyncNetworkBackend) -> None:
        """
        Args:
            inner: connects to addresses.
        """
        self._hosts, self._resolve, self._inner = hosts, resolve, inner

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connects to the first of the host's addresses that answers.

        Raises:
            httpcore.ConnectError, httpcore.ConnectTimeout: none does, or one of them is not allowed.
        """
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(f"the name was not found: {error}") from error
        for address in addresses:
            if not self._hosts.allow_address(host, ip_address(address)):
                raise httpcore.ConnectError(f"its address {address} is not allowed")
        failure: Exception = httpcore.ConnectError("it has no address")
        tried = addresses[:_MAX_TRIED]
        for address in tried:
            try:
                share = timeout and timeout / len(tried)
                return await self._inner.connect_tcp(address, port, share, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure
