"""The ranks of a worker, however they were started: their channels, and a thread that notices when one is gone."""

from __future__ import annotations

import logging
import select
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from engine_svc.executor.broadcast import Broadcast
from engine_svc.executor.channel import GONE, Channel

logger = logging.getLogger(__name__)

# Longest time that `RankGroup.end` takes.
_KNOWN_SECONDS = 2.0


class RankGroup(ABC):
    """The started ranks of one worker.

    Attributes:
        channels: one per rank.
        broadcast: sends to all channels, through shared memory where possible.
        rendezvous: address where the ranks form their process group: see join_groups.
        devices: for each rank, the index of its GPU among those visible to it.
    """

    channels: Sequence[Channel]
    broadcast: Broadcast
    rendezvous: str
    devices: Sequence[int]

    @abstractmethod
    def name(self, rank: int) -> str:
        """Name of a rank for logs: its number and where it runs."""

    @abstractmethod
    def end(self, rank: int) -> str:
        """How a rank whose channel is closed ended, e.g. 'was killed by SIGKILL'. Waits a moment to find out."""

    @abstractmethod
    def tell_where(self) -> None:
        """Makes all ranks write their stacks to the log, if possible."""

    @abstractmethod
    def kill(self) -> None:
        """Ends all ranks at once, whatever they are doing. May be called twice, and from any thread."""

    @abstractmethod
    def wait(self) -> None:
        """Waits for the ranks, whose channels are closed, to end by themselves; kills those that take too long."""


class RankWatch:
    """A thread that watches the ranks, even while no command is sent: when one is gone, it ends the others."""

    def __init__(self, ranks: RankGroup, wake: Callable[[], None]) -> None:
        """
        Args:
            wake: called from the thread when a rank is gone.
        """
        self._ranks = ranks
        self._wake = wake
        self._stop, self._stopped = socket.socketpair()
        self._noticed = threading.Event()
        self._known = threading.Event()
        self._death = ""
        self._thread = threading.Thread(target=self._run, name="ranks", daemon=True)
        self._thread.start()

    @property
    def death(self) -> str:
        """Which ranks are gone, and how; empty while all are there."""
        return self._death

    def find_death(self, seconds: float) -> str:
        """Like `death`, but waits up to `seconds` for the thread to notice, and then until it has found the reason.

        For callers that have noticed that something is wrong.
        """
        if self._noticed.wait(seconds):
            self._known.wait(_KNOWN_SECONDS)
        return self._death

    def stop(self) -> None:
        """Stops watching. Must be called before the channels are closed; may be called twice."""
        self._stop.close()
        self._thread.join()

    def _run(self) -> None:
        with self._stopped:
            gone = self._wait()
        if not gone:
            return
        self._noticed.set()
        self._death = " and ".join(f"{self._ranks.name(rank)} {self._ranks.end(rank)}" for rank in gone)
        logger.critical("%s; the worker's other ranks are terminated", self._death)
        self._ranks.kill()
        self._known.set()
        self._wake()

    def _wait(self) -> list[int]:
        """Waits until any rank is gone; returns those that are, or an empty list when stopped."""
        poll = select.poll()
        poll.register(self._stopped, GONE)
        ranks = {channel.fileno(): rank for rank, channel in enumerate(self._ranks.channels)}
        for descriptor in ranks:
            poll.register(descriptor, GONE)
        events = [descriptor for descriptor, _ in poll.poll()]
        return [] if self._stopped.fileno() in events else [ranks[descriptor] for descriptor in events]
