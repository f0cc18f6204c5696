"""Threads that read grammars."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable

from quire.structured.base import STACK_BYTES

logger = logging.getLogger(__name__)

Work = Callable[[], None]


class DeepThreads:
    """A few threads with large stacks, for work that recurses as deep as what it was given. In the order given."""

    def __init__(self, name: str, count: int) -> None:
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{n}", daemon=True) for n in range(count)]
        before = threading.stack_size(STACK_BYTES)
        try:
            for thread in self._threads:
                thread.start()
        finally:
            threading.stack_size(before)

    def submit(self, work: Work) -> None:
        """Has it called in one of the threads; it must not raise."""
        self._work.put(work)

    def close(self) -> None:
        """Ends the threads once they have done what they do now; what waits is not done."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._work.get_nowait()
        for _ in self._threads:
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:
                logger.exception("work on a grammar failed")
