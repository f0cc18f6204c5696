"""What callers with a session hear of the router a few times a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from quire.rpc.settings import HEARTBEAT_SECONDS
from quire.v1 import router_pb2
from router.requests.sessions import CallerSession


class Heartbeat:
    """How many workers are ready, and what waits for them."""

    def __init__(self, num_ready: Callable[[], int], waiting: Callable[[], Mapping[str, int]]) -> None:
        """
        Args:
            num_ready: workers.
            waiting: the requests that wait in this router now, by model.
        """
        self._num_ready = num_ready
        self._waiting = waiting
        # As of the last beat.
        self.frame = router_pb2.RouterServiceSessionResponse(ready_workers=0)

    async def run(self, sessions: Iterable[CallerSession], before: Callable[[], None]) -> None:
        """Every HEARTBEAT_SECONDS until cancelled: calls `before`, and sends a beat to the open `sessions`."""
        while True:
            before()
            self.frame = router_pb2.RouterServiceSessionResponse(
                ready_workers=self._num_ready(),
                queues=[router_pb2.ModelQueue(model=model, requests=n) for model, n in self._waiting().items()],
            )
            for session in sessions:
                session.heartbeat(self.frame)
            await asyncio.sleep(HEARTBEAT_SECONDS)
