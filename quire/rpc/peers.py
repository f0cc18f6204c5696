"""Peers announced by several sources: tracked by address, and dropped once they are done."""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import logging
from collections.abc import Callable, Iterable, Sequence, ValuesView
from typing import Generic, Protocol, TypeVar

from quire.errors import Overloaded
from quire.rpc.discovery import DnsSource, Resolver, resolve_host, split_address

logger = logging.getLogger(__name__)

LOOK_UP_SECONDS = 3.0
_MOST_NAMED = 256


class Peer(Protocol):
    """A peer at an address."""

    retired: bool  # no source announces it any more

    @property
    def busy(self) -> bool:
        """Whether it still has work to finish."""


class RunningPeer(Peer, Protocol):
    """A peer that is looked after while `run` runs."""

    address: str

    async def run(self) -> None:
        """Runs until cancelled."""


P = TypeVar("P", bound=Peer)
R = TypeVar("R", bound=RunningPeer)


class Peers(Generic[P]):
    """Maps addresses to peers. A peer is known while any source announces it, and after that while it is busy."""

    def __init__(self, most: int, on_gone: Callable[[P], None]) -> None:
        """
        Args:
            most: maximum number of peers known at a time.
            on_gone: releases the resources of a peer that is no longer known.
        """
        # In the order in which they became known.
        self.by_address: dict[str, P] = {}
        self._most = most
        self._on_gone = on_gone
        self._announced: dict[str, frozenset[str]] = {}

    def announce(self, source: str, addresses: Iterable[str], make: Callable[[str], P]) -> None:
        """Replaces the addresses (host:port) that `source` announces, and creates peers for new ones.

        Raises:
            Overloaded: there are too many peers.
        """
        chosen = frozenset(addresses)
        if len(self.by_address.keys() | chosen) > self._most:
            raise Overloaded(f"{source} announces too many addresses: the limit is {self._most} peers in total.")
        self._announced[source] = chosen
        for address in sorted(chosen - self.by_address.keys()):
            self.by_address[address] = make(address)
        self.sweep()

    def sweep(self) -> None:
        """Retires peers that no source announces, and drops retired ones that are not busy."""
        announced = frozenset().union(*self._announced.values())
        for address, peer in list(self.by_address.items()):
            peer.retired = address not in announced
            if peer.retired and not peer.busy:
                self._let_go(address)

    def clear(self) -> None:
        """Drops all peers."""
        for address in list(self.by_address):
            self._let_go(address)

    def _let_go(self, address: str) -> None:
        self._on_gone(self.by_address.pop(address))


class NamedPeers(Peers[R]):
    """The peers that an option names as host:port, each looked after by a task while `run` runs.

    If the host is a name, every address that it resolves to is a peer. It is resolved again and again.
    """

    def __init__(
        self, flag: str, addresses: Sequence[str], make: Callable[[str, str], R], resolve: Resolver = resolve_host
    ) -> None:
        """
        Args:
            flag: the option that `addresses` came from, for logs.
            make: (address, host name) → a new peer. The name is the one that it was found by, which its certificate
                must match; empty if `addresses` has its IP address.
        """
        super().__init__(_MOST_NAMED, self._end)
        self._flag = flag
        self._addresses = addresses
        self._make = make
        self._resolve = resolve
        self._running: dict[R, asyncio.Task[None]] = {}

    @property
    def known(self) -> ValuesView[R]:
        """All peers, whether they are up or not; a view that follows changes."""
        return self.by_address.values()

    async def run(self) -> None:
        """Resolves host names and runs the peers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for address in self._addresses:
                host, _ = split_address(address)
                name = "" if _is_literal(host) else host
                announce = functools.partial(self.announce, make=functools.partial(self._begin, group, name))
                if name:
                    source = DnsSource(self._flag, address, announce, LOOK_UP_SECONDS, self._resolve)
                    group.create_task(source.run())
                else:
                    announce(address, [address])

    def _begin(self, group: asyncio.TaskGroup, name: str, address: str) -> R:
        logger.debug("%s: a peer at %s", self._flag, address)
        peer = self._make(address, name)
        self._running[peer] = group.create_task(peer.run())
        return peer

    def _end(self, peer: R) -> None:
        logger.debug("%s: no peer at %s any more", self._flag, peer.address)
        self._running.pop(peer).cancel()


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
