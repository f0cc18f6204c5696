"""What callers with a session hear of the router a few times a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from quire.rpc.settings import HEARTBEAT_SECONDS
from quire.v1 import router_pb2
from router.requests.sessions import CallerSession
from router.workers.base import Worker


class Heartbeat:
    """How many workers are ready, and what waits for them."""

    def __init__(self, workers: Callable[[], Collection[Worker]], waiting: Callable[[], Mapping[str, int]]) -> None:
        """
        Args:
            waiting: the requests that wait in this router now, by model.
        """
        self._workers = workers
        self._waiting = waiting
        # As of the last beat.
        self.frame = router_pb2.RouterServiceSessionResponse(ready_workers=0)

    async def run(self, sessions: Iterable[CallerSession], before: Callable[[], None]) -> None:
        """Every HEARTBEAT_SECONDS until cancelled: calls `before`, and sends a beat to the open `sessions`."""
        while True:
            before()
            self.frame = router_pb2.RouterServiceSessionResponse(
                ready_workers=sum(worker.ready for worker in self._workers()),
                queues=[router_pb2.ModelQueue(model=model, requests=n) for model, n in self._waiting().items()],
            )
            for session in sessions:
                session.heartbeat(self.frame)
            await asyncio.sleep(HEARTBEAT_SECONDS)
