"""The connections on which audio arrives: how many there are, and how they end when the server stops."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator


class RealtimeSessions:
    """The sessions of a gateway.

    Attributes:
        num_started: sessions so far.
        audio_seconds: of all segments so far.
        is_ending: whether no session may start anymore.
    """

    def __init__(self) -> None:
        self.num_started = 0
        self.audio_seconds = 0.0
        self.is_ending = False
        self._live: set[Callable[[], None]] = set()
        self._none_is_live = asyncio.Event()
        self._none_is_live.set()

    @property
    def num_live(self) -> int:
        """Number of sessions."""
        return len(self._live)

    @contextlib.contextmanager
    def held(self, stop: Callable[[], None]) -> Iterator[None]:
        """Counts a session while the context is open.

        Args:
            stop: has it transcribe what it has, and end.
        """
        self.num_started += 1
        self._live.add(stop)
        self._none_is_live.clear()
        try:
            yield
        finally:
            self._live.discard(stop)
            if not self._live:
                self._none_is_live.set()

    async def end(self) -> None:
        """Stops all sessions, and waits until they have ended."""
        self.is_ending = True
        for stop in [*self._live]:
            stop()
        await self._none_is_live.wait()
