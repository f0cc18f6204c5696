"""Discovers replicas by DNS: every address behind a name is one."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence, Set

from quire.errors import Overloaded, StartupError

logger = logging.getLogger(__name__)

# An address counts as gone once this many answers in a row lack it: name servers occasionally give partial answers.
_MISSES = 3

# Host → its addresses, version 4 and 6.
Resolver = Callable[[str], Awaitable[Sequence[str]]]
# (source, addresses) → replaces what the source announced before. May raise Overloaded.
Announce = Callable[[str, Iterable[str]], None]


async def resolve_host(host: str) -> Sequence[str]:
    """Resolves a host with the system's resolver.

    Raises:
        OSError: the name cannot be resolved.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


def split_address(address: str) -> tuple[str, int]:
    """Splits `host:port` or `[IPv6 address]:port` into (host, port).

    Raises:
        ValueError: it is neither.
    """
    host, _, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not _is_host(host) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is not host:port, such as engine:50053.")
    return host, int(port)


def _is_host(host: str) -> bool:
    """Whether it is a valid host name."""
    try:
        host.encode("idna")
    except UnicodeError:
        return False
    return bool(host) and not any(c.isspace() or c == "/" for c in host)


def check_addresses(flag: str, addresses: Iterable[str]) -> None:
    """Checks that all addresses are host:port.

    Raises:
        StartupError: an address is malformed.
    """
    for address in addresses:
        try:
            split_address(address)
        except ValueError as error:
            raise StartupError(f"{flag} {error}") from error


class DnsSource:
    """Periodically announces the addresses behind a name."""

    def __init__(self, flag: str, address: str, announce: Announce, seconds: float, resolve: Resolver) -> None:
        """
        Args:
            flag: the option that `address` came from, for logs.
            seconds: time between two lookups.
        """
        self._name = f"{flag} {address}"
        self._host, self._port = split_address(address)
        self._announce = announce
        self._seconds = seconds
        self._resolve = resolve
        self._trouble = ""
        self._misses: dict[str, int] = {}  # address → answers in a row that lacked it

    async def run(self) -> None:
        """Looks up and announces until cancelled. While the name cannot be resolved, the last result stands."""
        while True:
            try:
                async with asyncio.timeout(max(self._seconds, 1.0)):
                    found = await self._resolve(self._host)
                self._announce(self._name, self._take({join_address(host, self._port) for host in one_family(found)}))
                self._trouble = ""
            except (OSError, Overloaded) as error:  # TimeoutError is an OSError
                self._log_once(str(error) or "timed out")
            await asyncio.sleep(self._seconds)

    def _take(self, found: Set[str]) -> Set[str]:
        """The addresses in effect after an answer: those in it, and those in recent answers."""
        misses = {address: 0 if address in found else self._misses.get(address, 0) + 1 for address in self._misses}
        self._misses = {address: count for address, count in misses.items() if count < _MISSES}
        self._misses.update((address, 0) for address in found)
        return self._misses.keys()

    def _log_once(self, trouble: str) -> None:
        if trouble != self._trouble:
            self._trouble = trouble
            logger.warning("%s: %s; keeping the addresses found before", self._name, trouble)


def one_family(hosts: Sequence[str]) -> Sequence[str]:
    """The IPv4 addresses, or all if there are none: a machine with addresses of both versions counts once."""
    return [host for host in hosts if ":" not in host] or hosts


def own_address_towards(host: str, port: int) -> str:
    """The address of this machine as the other host sees it. Sends nothing.

    Raises:
        OSError: the name does not exist, or there is no route to it.
    """
    family, _, _, _, place = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(place)
        return str(probe.getsockname()[0])


def join_address(host: str, port: int) -> str:
    """host:port, with brackets around IPv6."""
    try:
        return f"[{host}]:{port}" if ipaddress.ip_address(host).version == 6 else f"{host}:{port}"
    except ValueError:  # a name
        return f"{host}:{port}"
