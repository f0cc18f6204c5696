"""The ranks of a worker, however they were started: a channel to each, and who notices that one is gone."""

from __future__ import annotations

import logging
import select
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from engine_svc.executor.broadcast import Broadcast
from engine_svc.executor.channel import Channel

logger = logging.getLogger(__name__)

# What the kernel says of a socket whose peer has closed it or is gone.
_GONE = select.POLLHUP | select.POLLRDHUP | select.POLLERR

# For what `RankGroup.end` takes at most.
_KNOWN_SECONDS = 2.0


class RankGroup(ABC):
    """The started ranks of one worker.

    Attributes:
        channels: by rank.
        broadcast: over them, and faster where it can be.
        rendezvous: where they form their process group: see join_groups.
        devices: by rank, which of the GPUs that it sees is its own.
    """

    channels: Sequence[Channel]
    broadcast: Broadcast
    rendezvous: str
    devices: Sequence[int]

    @abstractmethod
    def name(self, rank: int) -> str:
        """What a log calls a rank: its number and where it runs."""

    @abstractmethod
    def end(self, rank: int) -> str:
        """How a rank ended whose channel is closed: 'was killed by SIGKILL'. Waits a moment to find out."""

    @abstractmethod
    def tell_where(self) -> None:
        """Has all ranks write to the log where they are in their code, if they can."""

    @abstractmethod
    def kill(self) -> None:
        """Ends all ranks at once, in whatever they are. May be called twice, and from any thread."""

    @abstractmethod
    def wait(self) -> None:
        """Waits for the ranks, whose channels are closed, to end by themselves; kills those that take too long."""


class RankWatch:
    """A thread that looks after the ranks, also while nobody talks to them: when one is gone, it ends the others."""

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
        """As `death`, for somebody to whom something seemed wrong: the thread may be about to notice, within so many
        seconds, or to find out how it went."""
        if self._noticed.wait(seconds):
            self._known.wait(_KNOWN_SECONDS)
        return self._death

    def stop(self) -> None:
        """Looks no longer; to be called before the channels are closed. May be called twice."""
        self._stop.close()
        self._thread.join()

    def _run(self) -> None:
        with self._stopped:
            gone = self._wait()
        if not gone:
            return
        self._noticed.set()
        self._death = " and ".join(f"{self._ranks.name(rank)} {self._ranks.end(rank)}" for rank in gone)
        logger.critical("%s; the worker's other ranks are ended", self._death)
        self._ranks.kill()
        self._known.set()
        self._wake()

    def _wait(self) -> list[int]:
        """Which ranks are gone, as soon as any is; nothing when it is to stop."""
        poll = select.poll()
        poll.register(self._stopped, _GONE)
        ranks = {channel.fileno(): rank for rank, channel in enumerate(self._ranks.channels)}
        for descriptor in ranks:
            poll.register(descriptor, _GONE)
        events = [descriptor for descriptor, _ in poll.poll()]
        return [] if self._stopped.fileno() in events else [ranks[descriptor] for descriptor in events]
