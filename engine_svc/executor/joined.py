"""Ranks that this process has started, and others that have connected to it."""

from __future__ import annotations

from collections.abc import Sequence

from engine_svc.executor.broadcast import Broadcast
from engine_svc.executor.network import Arrival
from engine_svc.executor.ranks import RankGroup


class JoinedRanks(RankGroup):
    """The first ranks as children of this process, and the others wherever they run."""

    def __init__(self, own: RankGroup, devices: Sequence[int], others: Sequence[Arrival], rendezvous: str) -> None:
        """
        Args:
            devices: for each own rank, the index of its GPU.
            others: in the order of their ranks.
            rendezvous: address that all of them reach.
        """
        self._own = own
        self._others = others
        self.channels = [*own.channels, *(other.channel for other in others)]
        self.devices = [*devices, *(other.device for other in others)]
        self.broadcast = Broadcast(self.channels)
        self.rendezvous = rendezvous

    def name(self, rank: int) -> str:
        """See RankGroup."""
        other = rank - len(self._own.channels)
        return self._own.name(rank) if other < 0 else f"rank {rank} (at {self._others[other].address})"

    def end(self, rank: int) -> str:
        """See RankGroup."""
        return self._own.end(rank) if rank < len(self._own.channels) else "has gone"

    def tell_where(self) -> None:
        """See RankGroup. Only the own ranks are told."""
        self._own.tell_where()

    def kill(self) -> None:
        """See RankGroup. The other ranks end when their channels do, and whatever started them supervises them."""
        self._own.kill()
        for other in self._others:
            other.channel.shut()

    def wait(self) -> None:
        """See RankGroup."""
        self._own.wait()
