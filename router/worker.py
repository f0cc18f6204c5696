"""One engine worker as the router sees it: its session, its health, its model and its load."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import Callable, Coroutine
from typing import Any

import grpc

from quire.errors import QuireError, Unavailable
from quire.options.server import RpcSecurityOptions
from quire.rpc.channel import call_metadata, open_channel
from quire.rpc.session import SessionLink
from quire.rpc.settings import CALL_SECONDS
from quire.rpc.status import from_rpc_error
from quire.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from router.health import HealthWatch
from router.load import LoadTracker
from router.policies.base import WorkerView
from router.state import Condition, Facts, State, assess

_RETRY_SECONDS = 0.25

FrameHandler = Callable[["Worker", engine_pb2.EngineServiceSessionResponse], None]
LossHandler = Callable[["Worker", QuireError], None]


class Worker:
    """Keeps up with one worker from `start` to `close`, through its restarts.

    Contract: `on_frame` gets each frame of the session without its load; `on_lost` is called once for each session
    that ends, and the streams it carried are gone with it.
    """

    def __init__(
        self, address: str, security: RpcSecurityOptions, on_frame: FrameHandler, on_lost: LossHandler
    ) -> None:
        self.address = address
        self.load = LoadTracker()
        # What it serves; the last answer stays while the worker is away.
        self.model_info: common_pb2.ModelInfo | None = None
        # Set when no source announces the worker any more.
        self.retired = False
        self._security = security
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._channel = open_channel(address, security)
        self._stub = engine_pb2_grpc.EngineServiceStub(self._channel)
        self._health = HealthWatch(self._channel)
        self._link: SessionLink[engine_pb2.EngineServiceSessionRequest, engine_pb2.EngineServiceSessionResponse]
        self._link = SessionLink(
            f"Engine worker {address}", self._open_session, engine_pb2.EngineServiceSessionRequest,
            self._take_frame, self._lose_session, on_connected=self._begin_session,
        )  # fmt: skip
        self._ask_model = asyncio.Event()
        self._model_trouble = ""
        self._was_connected = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begins to connect."""
        jobs: tuple[Coroutine[Any, Any, None], ...] = (self._link.run(), self._health.run(), self._keep_model_info())
        # Whoever announced the worker, its connection is nobody's request.
        self._tasks = [asyncio.create_task(job, context=contextvars.Context()) for job in jobs]

    async def close(self) -> None:
        """Disconnects; the worker aborts what this router had running there."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._channel.close()

    @property
    def condition(self) -> Condition:
        """The worker's state now, and the reason for it."""
        return assess(
            Facts(
                retired=self.retired,
                connected=self._link.connected,
                was_connected=self._was_connected,
                late=self._link.late,
                health=self._health.health,
                was_serving=self._health.was_serving,
                has_model=not self._ask_model.is_set(),
                trouble=self._trouble(),
            )
        )

    @property
    def ready(self) -> bool:
        """Whether it takes requests."""
        return self.condition.state is State.READY

    def view(self) -> WorkerView:
        """The worker as policies see it."""
        return WorkerView(self.address, self.load.estimate(), self.load.inflight_requests)

    def serves(self, model: str) -> bool:
        """Whether it answers to the name; every worker does to the empty one."""
        return self.model_info is not None and (not model or model in self.model_info.served_model_names)

    def start_generation(self, stream_id: int, generation: common_pb2.Generation, timeout_ms: int) -> None:
        """Sends a request to the worker.

        Raises:
            Unavailable: there is no connection.
            Overloaded: the worker does not read what it is sent.
        """
        start = self._link.post().starts.add(stream_id=stream_id, generation=generation)
        start.generation.timeout_ms = timeout_ms

    def abort(self, stream_id: int) -> None:
        """Ends a request at the worker; one that is not connected has ended it already."""
        with contextlib.suppress(Unavailable):
            self._link.post().abort_stream_ids.append(stream_id)

    def _trouble(self) -> str:
        error = self._link.error
        if not self._link.connected:
            return error.message if error else ""
        return self._model_trouble or self._health.trouble

    def _open_session(self) -> grpc.aio.StreamStreamCall:
        return self._stub.Session(metadata=call_metadata(self._security))

    def _begin_session(self) -> None:
        self._ask_model.set()  # a restarted worker may serve something else

    def _take_frame(self, frame: engine_pb2.EngineServiceSessionResponse) -> None:
        if frame.HasField("load"):
            self.load.heartbeat(frame.load)
            frame.ClearField("load")
        if frame.deltas:
            self._on_frame(self, frame)

    def _lose_session(self, error: QuireError) -> None:
        self._on_lost(self, error)

    async def _keep_model_info(self) -> None:
        while True:
            await self._ask_model.wait()
            await self._health.wait_serving()
            try:
                answer = await self._stub.GetModelInfo(
                    engine_pb2.GetModelInfoRequest(), metadata=call_metadata(self._security), timeout=CALL_SECONDS
                )
            except grpc.aio.AioRpcError as error:
                self._model_trouble = from_rpc_error(error).message
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            self.model_info = answer.model_info
            self._was_connected = True  # and no sooner: a worker that still loads opens sessions and ends them
            self._model_trouble = ""
            self._ask_model.clear()
