"""The heartbeat that callers with a session receive from the router a few times a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping

from quire.rpc.settings import HEARTBEAT_SECONDS
from quire.v1 import router_pb2
from router.requests.sessions import CallerSession


class Heartbeat:
    """Tells callers how many workers are ready, and how many requests wait for them."""

    def __init__(self, num_ready: Callable[[], int], waiting: Callable[[], Mapping[str, int]]) -> None:
        """
        Args:
            num_ready: returns the number of ready workers.
            waiting: returns the number of requests waiting in this router now, by model.
        """
        self._num_ready = num_ready
        self._waiting = waiting
        # The frame of the last beat.
        self.frame = router_pb2.RouterServiceSessionResponse(ready_workers=0)

    async def run(self, sessions: Iterable[CallerSession], before: Callable[[], None]) -> None:
        """Calls `before` and sends a beat to the open `sessions` every HEARTBEAT_SECONDS, until cancelled."""
        while True:
            before()
            self.frame = router_pb2.RouterServiceSessionResponse(
                ready_workers=self._num_ready(),
                queues=[router_pb2.ModelQueue(model=model, requests=n) for model, n in self._waiting().items()],
            )
            for session in sessions:
                session.heartbeat(self.frame)
            await asyncio.sleep(HEARTBEAT_SECONDS)
