"""One engine worker behind gRPC: its session, its health, its model and its load."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import grpc

from quire.errors import QuireError, Unavailable
from quire.options.server import RpcSecurityOptions
from quire.rpc.channel import call_metadata, open_channel, session_channel
from quire.rpc.session import SessionLink
from quire.rpc.settings import CALL_SECONDS, CONNECT_SECONDS, LOST_SECONDS
from quire.rpc.status import from_rpc_error
from quire.v1 import admin_pb2, admin_pb2_grpc, common_pb2, common_pb2_grpc, engine_pb2, engine_pb2_grpc
from router.index.feed import KvFeed
from router.index.prefix_index import WorkerBlocks
from router.workers.assignment import Assignment
from router.workers.base import Worker
from router.workers.convert import held_by, most_bytes, write_assignment
from router.workers.health import HealthWatch
from router.workers.inquest import has_died
from router.workers.state import Condition, Facts, assess

_RETRY_SECONDS = 0.25
# An engine that hangs for this multiple of the time that makes it unready will not recover by itself.
_LONG_STALL = 3

# The worker ends a request at its deadline; the call is given up this many seconds later, in case the worker is stuck.
_POOL_GRACE_SECONDS = 1.0
# Seconds within which an adapter's folder must be read and checked.
_ADAPTER_SECONDS = 120.0

FrameHandler = Callable[[Worker, engine_pb2.EngineServiceSessionResponse], None]
LossHandler = Callable[[Worker, QuireError], None]


class RemoteWorker(Worker):
    """Follows one worker from `start` to `close`, across its restarts.

    Contract: `on_frame` gets each frame of the session without its load; `on_lost` is called once for each session that
    ends, when the streams it carried are gone too; `on_change` is called after each change of state, load or model;
    `on_joined` is called once the worker has reported its model, on each connection.
    """

    def __init__(
        self,
        address: str,
        security: RpcSecurityOptions,
        feed: KvFeed,
        on_frame: FrameHandler,
        on_lost: LossHandler,
        on_change: Callable[[], None],
        now: Callable[[], float],
        on_joined: Callable[[RemoteWorker], None] = lambda worker: None,
    ) -> None:
        super().__init__(address)
        # Set when no source announces the worker any more.
        self.retired = False
        self._security = security
        self._feed = feed
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_change = on_change
        self._now = now
        self._on_joined = on_joined
        self._channel = open_channel(address, security)
        self._stub = engine_pb2_grpc.EngineServiceStub(self._channel)
        self._sessions = engine_pb2_grpc.EngineServiceStub(session_channel(self._channel, address, security))
        self._info = common_pb2_grpc.InfoServiceStub(self._channel)
        self._instance_id = ""  # of the process that last reported its model
        self._health = HealthWatch(self._channel, on_change)
        self._link: SessionLink[engine_pb2.EngineServiceSessionRequest, engine_pb2.EngineServiceSessionResponse]
        self._link = SessionLink(
            f"Engine worker {address}", self._open_session, engine_pb2.EngineServiceSessionRequest,
            self._take_frame, self._lose_session, on_connected=self._begin_session, lost_seconds=LOST_SECONDS,
            wait_for_peer=self._health.wait_serving,  # a worker that loads its model would end each session at once
        )  # fmt: skip
        self._admin = admin_pb2_grpc.EngineAdminServiceStub(self._channel)
        self._held: Condition | None = None  # set by an operator
        self._ask_model = asyncio.Event()
        self._has_model = False  # reported on this connection
        self._adapters_version = 0
        self._model_trouble = ""
        self._was_connected = False
        # Whether it has reported its load on this connection. What it reported on the one before says nothing about an
        # engine that was restarted.
        self._has_told_load = False
        self._tasks: list[asyncio.Task[None]] = []
        self._inquests: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Starts connecting."""
        jobs: tuple[Coroutine[Any, Any, None], ...] = (
            self._link.run(), self._health.run(), self._keep_model_info(), self._feed.run(self._subscribe)
        )  # fmt: skip
        # A fresh context: the connection belongs to no request, even if one announced the worker.
        self._tasks = [asyncio.create_task(job, context=contextvars.Context()) for job in jobs]

    async def close(self) -> None:
        """Disconnects; the worker then aborts this router's requests."""
        tasks = (*self._tasks, *self._inquests)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._feed.close()
        await self._channel.close()

    @property
    def busy(self) -> bool:
        """Whether requests of this router run on the worker."""
        return self.load.inflight_requests > 0

    @property
    def condition(self) -> Condition:
        """The worker's state now, and the reason for it."""
        return assess(
            Facts(
                retired=self.retired,
                connected=self._link.connected,
                was_connected=self._was_connected,
                late=self._link.late,
                stalled=self._stalled() > 0,
                health=self._health.health,
                was_serving=self._health.was_serving,
                has_model=self._has_model,
                trouble=self._trouble(),
                held=self._held,
                ejected=self.ejection.reason if self.ejection.ejected_until > self._now() else "",
            )
        )

    @property
    def blocks(self) -> WorkerBlocks:
        """See Worker."""
        return self._feed.blocks

    def start_generation(
        self, stream_id: int, assignment: Assignment, timeout_ms: int, *, hands_over: bool = False
    ) -> None:
        """See Worker."""
        frame = self._link.post(num_bytes=most_bytes(assignment))
        start = frame.starts.add(stream_id=stream_id, generation=assignment.generation, hands_over=hands_over)
        write_assignment(assignment, timeout_ms, start.generation)

    def abort(self, stream_id: int) -> None:
        """See Worker."""
        with contextlib.suppress(Unavailable):
            self._link.post(0).abort_stream_ids.append(stream_id)

    def stop(self, stream_id: int, choice_index: int, num_output_tokens: int) -> None:
        """See Worker."""
        with contextlib.suppress(Unavailable):
            self._link.post(0).stops.add(
                stream_id=stream_id, choice_index=choice_index, num_output_tokens=num_output_tokens
            )

    def hear(self, stream_id: int, append: engine_pb2.AudioAppend) -> None:
        """See Worker."""
        with contextlib.suppress(Unavailable):
            added = self._link.post(num_bytes=append.ByteSize()).appends.add()
            added.CopyFrom(append)
            added.stream_id = stream_id

    async def pool(self, request: common_pb2.PoolRequest, model: str, seconds: float) -> common_pb2.PoolResponse:
        """See Worker."""
        assigned = common_pb2.PoolRequest()
        assigned.CopyFrom(request)
        assigned.model, assigned.timeout_ms = model, max(1, round(seconds * 1000))
        try:
            answer: common_pb2.PoolResponse = await self._stub.Pool(
                assigned, metadata=call_metadata(self._security), timeout=seconds + _POOL_GRACE_SECONDS
            )
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        return answer

    async def load_adapter(self, request: engine_pb2.LoadAdapterRequest) -> common_pb2.AdapterInfo:
        """Has the worker serve an adapter.

        Raises:
            QuireError: it cannot; the message names the worker.
        """
        answer = await self._change_adapters(self._stub.LoadAdapter, request, _ADAPTER_SECONDS)
        adapter: common_pb2.AdapterInfo = answer.adapter
        return adapter

    async def unload_adapter(self, request: engine_pb2.UnloadAdapterRequest) -> int:
        """Has the worker stop serving an adapter; returns how many requests still used it when the wait was over.

        Raises: see `load_adapter`.
        """
        seconds = CALL_SECONDS + request.wait_ms / 1000
        answer = await self._change_adapters(self._stub.UnloadAdapter, request, seconds)
        return int(answer.live_requests)

    async def administer(self, command: admin_pb2.AdminCommand, seconds: float) -> admin_pb2.AdminOutcome:
        """Has the worker carry out an operator's command, within `seconds`.

        Raises: see `load_adapter`.
        """
        request = admin_pb2.EngineAdminServiceAdministerRequest(command=command)
        answer = await self._call(self._admin.Administer, request, seconds)
        outcome: admin_pb2.AdminOutcome = answer.outcome
        if self.load.last is not None:  # ahead of the next heartbeat, which will report the same
            self.load.last.status.CopyFrom(outcome.status)
        self._learn_status(outcome.status)
        return outcome

    async def _change_adapters(self, call: Callable[..., Any], request: Any, seconds: float) -> Any:
        """Makes a call that changes the worker's adapters; returns its answer once the worker has reported them
        anew."""
        answer = await self._call(call, request, seconds)
        with self._naming_itself():
            await self._learn_model()
        return answer

    async def _call(self, call: Callable[..., Any], request: Any, seconds: float) -> Any:
        with self._naming_itself():
            return await call(request, metadata=call_metadata(self._security), timeout=seconds)

    @contextlib.contextmanager
    def _naming_itself(self) -> Iterator[None]:
        """Names the worker in the errors of calls."""
        try:
            yield
        except grpc.aio.AioRpcError as error:
            failure = from_rpc_error(error)
            failure.message = f"Engine worker {self.address}: {failure.message}"
            raise failure from error

    def when_dead(self, callback: Callable[[], None]) -> None:
        """See Worker."""
        inquest = asyncio.create_task(self._inquire(self._instance_id, callback), context=contextvars.Context())
        self._inquests.add(inquest)
        inquest.add_done_callback(self._inquests.discard)

    def check_progress(self) -> None:
        """Gives the worker's session up when its engine has hung for long, so that its requests move. Call it a few
        times a second."""
        if self._has_told_load and self._stalled() > _LONG_STALL:
            self._link.give_up()

    def _stalled(self) -> float:
        return self.load.stalled(self._now(), self.model_info.max_num_batched_tokens if self.model_info else 0)

    def _trouble(self) -> str:
        if self._link.connected:
            return self._model_trouble or self._health.trouble
        error = self._link.error
        return self._health.trouble or (error.message if error else "")

    def _open_session(self) -> grpc.aio.StreamStreamCall:
        return self._sessions.Session(metadata=call_metadata(self._security))

    def _begin_session(self) -> None:
        self._has_told_load = False
        self._hold(None)
        self._has_model = False  # a restarted worker may serve something else
        self._ask_model.set()
        self._on_change()

    def _take_frame(self, frame: engine_pb2.EngineServiceSessionResponse) -> None:
        if frame.HasField("load"):
            self._has_told_load = True
            if frame.load.adapters_version != self._adapters_version:
                self._adapters_version = frame.load.adapters_version
                self._ask_model.set()
            self.load.heartbeat(frame.load, self._now())
            self._learn_status(frame.load.status)
            frame.ClearField("load")
        if frame.deltas:
            self._on_frame(self, frame)

    def _learn_status(self, status: common_pb2.EngineStatus) -> None:
        told = held_by(status)
        if told != self._held:
            self._hold(told)
            self._on_change()

    def _hold(self, held: Condition | None) -> None:
        self._held = held
        self.ejection.rested = self._now() if held is None else math.inf

    def _lose_session(self, error: QuireError) -> None:
        self._on_change()
        self._on_lost(self, error)

    def _subscribe(
        self, request: engine_pb2.SubscribeKvEventsRequest
    ) -> AsyncIterator[engine_pb2.SubscribeKvEventsResponse]:
        call: AsyncIterator[engine_pb2.SubscribeKvEventsResponse] = self._stub.SubscribeKvEvents(
            request, metadata=call_metadata(self._security)
        )
        return call

    async def _inquire(self, instance_id: str, callback: Callable[[], None]) -> None:
        if await has_died(self.address, instance_id, self._ask_instance):
            callback()

    async def _ask_instance(self) -> str:
        answer: common_pb2.GetServerInfoResponse = await self._info.GetServerInfo(
            common_pb2.GetServerInfoRequest(), metadata=call_metadata(self._security), timeout=CONNECT_SECONDS
        )
        return answer.instance_id

    async def _keep_model_info(self) -> None:
        while True:
            await self._ask_model.wait()
            await self._health.wait_serving()
            self._ask_model.clear()  # changes reported from now on trigger another query
            try:
                self._instance_id = await self._ask_instance()
                await self._learn_model()
            except grpc.aio.AioRpcError as error:
                self._model_trouble = from_rpc_error(error).message
                self._ask_model.set()
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            self._was_connected = True
            self._model_trouble = ""
            has_joined, self._has_model = not self._has_model, True
            self._on_change()
            if has_joined:
                self._on_joined(self)

    async def _learn_model(self) -> None:
        answer = await self._stub.GetModelInfo(
            engine_pb2.GetModelInfoRequest(), metadata=call_metadata(self._security), timeout=CALL_SECONDS
        )
        self.learn(answer.model_info)
        self._on_change()
