"""Peers announced by several sources: tracked by address, and dropped once they are done."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar

from quire.errors import Overloaded


class Peer(Protocol):
    """A peer at an address."""

    retired: bool  # no source announces it any more

    @property
    def busy(self) -> bool:
        """Whether it still has work to finish."""


P = TypeVar("P", bound=Peer)


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
