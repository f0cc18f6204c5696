"""RouterService: maps gRPC calls onto the dispatcher."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc

from quire.errors import Internal, InvalidRequest, NotFound, QuireError
from quire.rpc.context import current_request_id, current_trace
from quire.rpc.discovery import split_address
from quire.rpc.images import check_whole
from quire.rpc.interceptors import UNARY_SECONDS
from quire.rpc.status import from_request_error
from quire.rpc.trace import to_trace, write_trace
from quire.tracing.attributes import REQUEST_ID, REQUEST_MODEL
from quire.tracing.base import Side, Tracer
from quire.v1 import common_pb2, engine_pb2, router_pb2, router_pb2_grpc
from router.adapters import FleetAdapters
from router.convert import explanation, worker_message
from router.heartbeat import Heartbeat
from router.placement.decisions import KEPT_DECISIONS, Decisions
from router.requests.aliases import Aliases
from router.requests.dispatch import Dispatcher
from router.requests.pooling import PoolDispatcher
from router.requests.sessions import CallerSession
from router.requests.traces import SPAN_NAME
from router.workers.registrations import Registrations
from router.workers.registry import STATIC_WORKERS, WorkerRegistry

logger = logging.getLogger(__name__)

_STREAM_ID = 0  # stream id of the single request of a Generate call


class RouterServicer(router_pb2_grpc.RouterServiceServicer):
    """Implements the calls of router.proto."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        registry: WorkerRegistry,
        registrations: Registrations,
        heartbeat: Heartbeat,
        decisions: Decisions,
        aliases: Aliases,
        adapters: FleetAdapters,
        pooling: PoolDispatcher,
        tracer: Tracer | None = None,
    ) -> None:
        self._tracer = tracer
        self._dispatcher = dispatcher
        self._decisions = decisions
        self._aliases = aliases
        self._adapters = adapters
        self._registry = registry
        self._registrations = registrations
        self._heartbeat = heartbeat
        self._pooling = pooling

    async def Generate(
        self, request: router_pb2.RouterServiceGenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[router_pb2.RouterServiceGenerateResponse]:
        generation = request.generation
        check_whole(generation)
        generation.request_id = generation.request_id or current_request_id()
        session = self._dispatcher.open_session()
        session.half_closed = True
        try:
            self._start(session, _STREAM_ID, generation)
            while not session.finished:
                for delta in (await session.next_frame()).deltas:
                    if delta.HasField("error"):
                        raise from_request_error(delta.error)
                    yield router_pb2.RouterServiceGenerateResponse(delta=delta)
        finally:
            self._dispatcher.close_session(session)

    async def Session(
        self,
        request_iterator: AsyncIterator[router_pb2.RouterServiceSessionRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[router_pb2.RouterServiceSessionResponse]:
        session = self._dispatcher.open_session()
        session.heartbeat(self._heartbeat.frame)
        reader = asyncio.create_task(self._read(session, request_iterator))
        try:
            while not session.finished:
                yield await session.next_frame()
        finally:
            reader.cancel()
            self._dispatcher.close_session(session)

    async def Pool(self, request: common_pb2.PoolRequest, context: grpc.aio.ServicerContext) -> common_pb2.PoolResponse:
        request.request_id = request.request_id or current_request_id()
        return await self._pooling.pool(request, context.time_remaining() or UNARY_SECONDS)

    async def ListWorkers(
        self, request: router_pb2.ListWorkersRequest, context: grpc.aio.ServicerContext
    ) -> router_pb2.ListWorkersResponse:
        workers = self._registry.workers
        return router_pb2.ListWorkersResponse(
            workers=[worker_message(worker) for worker in workers],
            aliases=[router_pb2.ModelAlias(name=name, models=models) for name, models in self._aliases.names.items()],
        )

    async def RegisterWorker(
        self, request: router_pb2.RegisterWorkerRequest, context: grpc.aio.ServicerContext
    ) -> router_pb2.RegisterWorkerResponse:
        _check_address(request.address, "address")
        lease_id = self._registrations.register(request.address)
        return router_pb2.RegisterWorkerResponse(lease_id=lease_id, lease_ms=self._registrations.lease_ms)

    async def Heartbeat(
        self, request: router_pb2.HeartbeatRequest, context: grpc.aio.ServicerContext
    ) -> router_pb2.HeartbeatResponse:
        self._registrations.renew(request.lease_id)
        return router_pb2.HeartbeatResponse(lease_ms=self._registrations.lease_ms)

    async def SetWorkers(
        self, request: router_pb2.SetWorkersRequest, context: grpc.aio.ServicerContext
    ) -> router_pb2.SetWorkersResponse:
        for address in request.addresses:
            _check_address(address, "addresses")
        self._registry.announce(STATIC_WORKERS, request.addresses)
        return router_pb2.SetWorkersResponse()

    async def ExplainPlacement(
        self, request: router_pb2.ExplainPlacementRequest, context: grpc.aio.ServicerContext
    ) -> router_pb2.ExplainPlacementResponse:
        decision = self._decisions.find(request.request_id)
        if decision is None:
            raise NotFound(
                f"The placement of request {request.request_id[:128]!r} is not known; the router remembers the last "
                f"{KEPT_DECISIONS}.",
                parameter="request_id",
            )
        return explanation(decision, request.weights)

    async def LoadAdapter(
        self, request: engine_pb2.LoadAdapterRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.LoadAdapterResponse:
        return engine_pb2.LoadAdapterResponse(adapter=await self._adapters.load(request))

    async def UnloadAdapter(
        self, request: engine_pb2.UnloadAdapterRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.UnloadAdapterResponse:
        return engine_pb2.UnloadAdapterResponse(live_requests=await self._adapters.unload(request))

    def _start(self, session: CallerSession, stream_id: int, generation: common_pb2.Generation) -> None:
        """Starts a request, and a span for it in the request's trace; the worker's span becomes a child of this one."""
        span = None
        if self._tracer is not None:
            attributes = {REQUEST_ID: generation.request_id, REQUEST_MODEL: generation.model}
            parent = to_trace(generation) or current_trace()
            span = self._tracer.start(SPAN_NAME, Side.SERVER, parent, attributes)
            write_trace(span.trace, generation)
        self._dispatcher.start(session, stream_id, generation, span)

    async def _read(
        self, session: CallerSession, frames: AsyncIterator[router_pb2.RouterServiceSessionRequest]
    ) -> None:
        """Carries out the caller's starts, stops and aborts until its stream ends."""
        try:
            async for frame in frames:
                for start in frame.starts:
                    self._start(session, start.stream_id, start.generation)
                for stop in frame.stops:
                    self._dispatcher.stop(session, stop)
                for append in frame.appends:
                    self._dispatcher.hear(session, append)
                for stream_id in frame.abort_stream_ids:
                    self._dispatcher.abort(session, stream_id)
            session.half_closed = True
        except QuireError as error:
            session.failure = error
        except Exception:
            logger.exception("a frame of a session could not be handled")
            session.failure = Internal("A frame could not be handled; the log of the router has the details.")
        session.wake()


def _check_address(address: str, parameter: str) -> None:
    """
    Raises:
        InvalidRequest: the address is not host:port.
    """
    try:
        split_address(address)
    except ValueError as error:
        raise InvalidRequest(str(error), parameter=parameter) from error
