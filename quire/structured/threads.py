"""Threads that read grammars."""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable

from quire.structured.base import STACK_BYTES

logger = logging.getLogger(__name__)

Work = Callable[[], None]

# A call into a library cannot be ended. What has taken so long counts as lost with its thread, and another takes its
# place, up to so many times the threads there were to be.
_PATIENCE_SECONDS = 30.0
_MOST_REPLACED = 4


class DeepThreads:
    """A few threads with large stacks, for work that recurses as deep as what it was given. In the order given."""

    def __init__(self, name: str, count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._count = count
        self._clock = clock
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._began: dict[int, float] = {}  # number of a thread → when what it does now began; infinity for nothing
        for _ in range(count):
            self._start()

    def submit(self, work: Work) -> None:
        """Has it called in one of the threads; it must not raise. Called from one thread."""
        self._work.put(work)
        late = self._clock() - _PATIENCE_SECONDS
        alive = sum(began > late for began in list(self._began.values()))
        if alive < self._count and len(self._began) < _MOST_REPLACED * self._count:
            logger.warning("reading a grammar has taken more than %g s; another thread reads on", _PATIENCE_SECONDS)
            self._start()

    def close(self) -> None:
        """Ends the threads once they have done what they do now; what waits is not done."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._work.get_nowait()
        for _ in self._began:
            self._work.put(None)

    def _start(self) -> None:
        number = next(self._numbers)
        self._began[number] = float("inf")
        thread = threading.Thread(target=self._run, args=(number,), name=f"{self._name}-{number}", daemon=True)
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)

    def _run(self, number: int) -> None:
        while (work := self._work.get()) is not None:
            self._began[number] = self._clock()
            try:
                work()
            except Exception:
                logger.exception("work on a grammar failed")
            self._began[number] = float("inf")
