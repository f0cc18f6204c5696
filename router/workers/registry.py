"""The workers known now, from all sources."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable, Sequence, ValuesView

from quire.rpc.peers import Peers
from router.workers.remote import RemoteWorker
from router.workers.state import Condition, State

logger = logging.getLogger(__name__)

MAX_WORKERS = 1024
STATIC_WORKERS = "--workers"  # source name for workers given when the router started, or by SetWorkers since


class WorkerRegistry:
    """Maps addresses to workers. A worker is known while any source announces it, and after that until its requests are
    done."""

    def __init__(
        self,
        make_worker: Callable[[str], RemoteWorker],
        on_beat: Callable[[Sequence[RemoteWorker]], None] = lambda ready: None,
    ) -> None:
        """
        Args:
            on_beat: called with the ready workers at each announcement: workers may have come, gone or changed their
                state.
        """
        self._make_worker = make_worker
        self._on_beat = on_beat
        self.num_ready = 0  # ready workers at the last check that take requests
        self._peers = Peers(MAX_WORKERS, self._end)
        self._told: dict[str, Condition] = {}  # address → condition logged last
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def workers(self) -> ValuesView[RemoteWorker]:
        """All workers, in the order in which they became known."""
        return self._peers.by_address.values()

    def announce(self, source: str, addresses: Iterable[str]) -> None:
        """Replaces the addresses (host:port) that `source` announces.

        Raises:
            Overloaded: there are too many workers.
        """
        self._peers.announce(source, addresses, functools.partial(self._begin, source))
        self._watch()

    async def close(self) -> None:
        """Disconnects from all workers."""
        self._peers.clear()
        await asyncio.gather(*self._closing)

    def _begin(self, source: str, address: str) -> RemoteWorker:
        logger.info("worker %s announced by %s", address, source)
        worker = self._make_worker(address)
        worker.start()
        return worker

    def _end(self, worker: RemoteWorker) -> None:
        logger.info("worker %s is gone", worker.address)
        task = asyncio.ensure_future(worker.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        self._told.pop(worker.address, None)

    def _watch(self) -> None:
        ready = []
        for worker in self.workers:
            worker.check_progress()
            condition = worker.condition
            self._log_state(worker, condition)
            if condition.state is State.READY:
                ready.append(worker)
        self.num_ready = sum(not worker.encodes_only for worker in ready)
        self._on_beat(ready)

    def _log_state(self, worker: RemoteWorker, condition: Condition) -> None:
        if _is_news(self._told.get(worker.address), condition):
            self._told[worker.address] = condition
            reason = f": {condition.reason}" if condition.reason else ""
            logger.info("worker %s is %s%s", worker.address, condition.state.value, reason)


def _is_news(told: Condition | None, now: Condition) -> bool:
    """Whether to log the condition: the state changed, or the worker began to load its model, or vanished while
    loading."""
    if told is None or told.state is not now.state:
        return True
    return not now.coming if told.loading else now.loading
