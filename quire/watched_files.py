"""Reads files again when they change while the server runs."""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from quire.errors import StartupError

logger = logging.getLogger(__name__)

_POLL_SECONDS = 5.0
_registering = threading.Lock()


class WatchedFiles:
    """Files that belong together. May be refreshed from several threads."""

    def __init__(self, what: str, paths: Sequence[str], load: Callable[[], None]) -> None:
        """
        Args:
            what: name of their content, in logs.
            load: reads the files; raises StartupError, and changes nothing, if they are unreadable or wrong. Not called
                for the files as they are now.
        """
        self._what, self._paths, self._load = what, [Path(path) for path in paths], load
        self._stamps = self._look()
        self._has_failed = False
        self._lock = threading.Lock()
        if paths:
            with _registering:
                _watched.add(self)

    async def watch(self) -> None:
        """Loads the files whenever they change, until cancelled."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            self.refresh()

    def refresh(self) -> None:
        """Loads the files if they have changed. If that fails, what was loaded before stays in use."""
        with self._lock:
            if (stamps := self._look()) == self._stamps:
                return
            self._stamps = stamps  # taken before they are read: what changes meanwhile is read again
            try:
                self._load()
                self._has_failed = False
                logger.info("the %s were reloaded", self._what)
            except StartupError as error:
                self._has_failed = True
                logger.warning("the %s have changed but cannot be read; keeping the old ones: %s", self._what, error)

    def _look(self) -> list[tuple[int, int]]:
        return [_stamp(path) for path in self._paths]


_watched: weakref.WeakSet[WatchedFiles] = weakref.WeakSet()


def failed_reloads() -> Mapping[str, int]:
    """What this process watches → how many of these files have changed and cannot be read."""
    with _registering:
        watched = list(_watched)
    found: Counter[str] = Counter()
    for files in watched:
        found[files._what] += files._has_failed
    return found


def _stamp(path: Path) -> tuple[int, int]:
    try:
        found = path.stat()
    except OSError:  # it is just being replaced
        return 0, 0
    return found.st_ctime_ns, found.st_size  # unlike the time of modification, this one changes with permissions too
