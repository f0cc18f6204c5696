"""The workers known now, whoever announced them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, ValuesView

from quire.errors import Overloaded
from router.workers.remote import RemoteWorker
from router.workers.state import State

logger = logging.getLogger(__name__)

MAX_WORKERS = 1024


class WorkerRegistry:
    """Address → worker. A worker is known while any source announces it, and after that until its requests are done."""

    def __init__(
        self,
        make_worker: Callable[[str], RemoteWorker],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """
        Args:
            on_change: called when workers may have come, gone or changed their state; at each `sweep` too.
        """
        self._make_worker = make_worker
        self._on_change = on_change
        self._workers: dict[str, RemoteWorker] = {}
        self._announced: dict[str, frozenset[str]] = {}
        self._states: dict[str, State] = {}
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def workers(self) -> ValuesView[RemoteWorker]:
        """All of them, in the order in which they became known."""
        return self._workers.values()

    def announce(self, source: str, addresses: Iterable[str]) -> None:
        """Replaces what `source` announces by `addresses` (host:port).

        Raises:
            Overloaded: there are too many.
        """
        chosen = frozenset(addresses)
        if len(self._workers.keys() | chosen) > MAX_WORKERS:
            raise Overloaded(f"{source} announces more workers than the {MAX_WORKERS} that a router keeps up with.")
        self._announced[source] = chosen
        for address in sorted(chosen - self._workers.keys()):
            logger.info("worker %s announced by %s", address, source)
            self._workers[address] = worker = self._make_worker(address)
            worker.start()
        self.sweep()

    def sweep(self) -> None:
        """Retires workers that nobody announces, lets go of those that are done, and logs changes of state."""
        announced = frozenset().union(*self._announced.values())
        for address, worker in list(self._workers.items()):
            worker.retired = address not in announced
            if worker.retired and not worker.load.inflight_requests:
                self._remove(address)
            else:
                worker.check_progress()
                self._log_state(worker)
        self._on_change()

    async def close(self) -> None:
        """Disconnects from all workers."""
        for address in list(self._workers):
            self._remove(address)
        await asyncio.gather(*self._closing)

    def _remove(self, address: str) -> None:
        logger.info("worker %s is gone", address)
        task = asyncio.ensure_future(self._workers.pop(address).close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        self._states.pop(address, None)

    def _log_state(self, worker: RemoteWorker) -> None:
        condition = worker.condition
        if self._states.get(worker.address) is not condition.state:
            self._states[worker.address] = condition.state
            reason = f": {condition.reason}" if condition.reason else ""
            logger.info("worker %s is %s%s", worker.address, condition.state.value, reason)
