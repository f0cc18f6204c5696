"""Watches the health that a worker itself reports, over gRPC health checking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from quire.rpc.status import from_rpc_error
from quire.v1 import engine_pb2
from router.workers.state import Health

ENGINE_SERVICE = engine_pb2.DESCRIPTOR.services_by_name["EngineService"].full_name
_RETRY_SECONDS = 0.5
_HEALTH = {
    health_pb2.HealthCheckResponse.SERVING: Health.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING: Health.NOT_SERVING,
}


class HealthWatch:
    """The health of one worker, kept current while `run` runs."""

    def __init__(self, channel: grpc.aio.Channel, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self._stub = health_pb2_grpc.HealthStub(channel)
        self._serving = asyncio.Event()
        self.health = Health.UNKNOWN
        self.was_serving = False
        # Why the health is unknown; empty otherwise.
        self.trouble = ""

    async def run(self) -> None:
        """Watches until cancelled, and starts again whenever the stream breaks."""
        while True:
            try:
                await self._watch()
                self.trouble = "it ended the health watch"
            except grpc.aio.AioRpcError as error:
                self.trouble = from_rpc_error(error).message
            self._set(Health.UNKNOWN)
            self.was_serving = False
            await asyncio.sleep(_RETRY_SECONDS)

    async def wait_serving(self) -> None:
        """Returns once the worker reports SERVING, however long that takes."""
        await self._serving.wait()

    async def _watch(self) -> None:
        request = health_pb2.HealthCheckRequest(service=ENGINE_SERVICE)
        # A watch lasts as long as the worker does: keepalive pings, not a deadline, detect that it is gone.
        async for answer in self._stub.Watch(request):
            self.trouble = ""
            self._set(_HEALTH.get(answer.status, Health.UNKNOWN))

    def _set(self, health: Health) -> None:
        self.health = health
        if health is Health.SERVING:
            self.was_serving = True
            self._serving.set()
        else:
            self._serving.clear()
        self._on_change()
