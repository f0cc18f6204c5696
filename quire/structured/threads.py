"""Threads for reading grammars."""

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

# A call into a library cannot be aborted. Work that takes longer than this is written off together with its thread,
# which is replaced, until there are this many times the intended number of threads.
_PATIENCE_SECONDS = 30.0
_MOST_REPLACED = 4


class DeepThreads:
    """A few threads with large stacks, for work whose recursion depth depends on its input. Work is started in
    order."""

    def __init__(self, name: str, count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._count = count
        self._clock = clock
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._numbers = itertools.count()
        self._began: dict[int, float] = {}  # thread number → start time of its current work; infinity while idle
        for _ in range(count):
            self._start()

    def submit(self, work: Work) -> None:
        """Queues work for one of the threads; it should not raise. Called from one thread."""
        self._work.put(work)
        late = self._clock() - _PATIENCE_SECONDS
        alive = sum(began > late for began in list(self._began.values()))
        if alive < self._count and len(self._began) < _MOST_REPLACED * self._count:
            logger.warning("reading a grammar has taken more than %g s; another thread takes over", _PATIENCE_SECONDS)
            self._start()

    def close(self) -> None:
        """Ends the threads after their current work; queued work is dropped."""
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
