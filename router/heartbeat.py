"""The heartbeat that callers with a session receive from the router a few times a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from quire.rpc.settings import HEARTBEAT_SECONDS
from quire.v1 import router_pb2
from router.requests.sessions import CallerSession


class Heartbeat:
    """Tells callers how many workers are ready, how many requests wait for them, and when this router drains."""

    def __init__(
        self,
        sessions: Collection[CallerSession],
        num_ready: Callable[[], int],
        waiting: Callable[[], Mapping[str, int]],
    ) -> None:
        """
        Args:
            sessions: the open sessions; a view that follows changes.
            num_ready: returns the number of ready workers.
            waiting: returns the number of requests waiting in this router now, by model.
        """
        self._sessions = sessions
        self._num_ready = num_ready
        self._waiting = waiting
        self._draining = False
        # The frame of the last beat.
        self.frame = router_pb2.RouterServiceSessionResponse(ready_workers=0)

    async def run(self, before: Callable[[], None]) -> None:
        """Calls `before` and sends a beat every HEARTBEAT_SECONDS, until cancelled."""
        while True:
            before()
            self._beat()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def drain(self) -> None:
        """Tells callers at once to start new requests elsewhere: each one refused here would take longer."""
        self._draining = True
        self._beat()

    def _beat(self) -> None:
        self.frame = router_pb2.RouterServiceSessionResponse(
            ready_workers=self._num_ready(),
            queues=[router_pb2.ModelQueue(model=model, requests=n) for model, n in self._waiting().items()],
            draining=self._draining,
        )
        for session in self._sessions:
            session.heartbeat(self.frame)
