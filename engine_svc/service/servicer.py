"""EngineService: converts between protobuf and the worker, which does the work."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc

from engine_svc.core.loop import EngineLoop
from engine_svc.requests.outputs import SequenceDelta, num_items
from engine_svc.service.answer import OnlyDelta
from engine_svc.service.convert import (
    add_delta,
    from_adapter,
    from_load,
    from_model_info,
    from_pooled,
    to_pooling_request,
    to_request,
)
from engine_svc.service.encoding import encoded_media
from engine_svc.service.kv_blocks import kv_blocks
from engine_svc.service.kv_events import kv_events
from engine_svc.service.session import EngineSession
from engine_svc.service.traces import EngineTraces
from engine_svc.worker import EngineWorker
from quire.errors import Overloaded
from quire.rpc.context import current_request_id
from quire.rpc.images import check_whole
from quire.rpc.session import Outbox
from quire.tracing.base import Tracer
from quire.v1 import common_pb2, engine_pb2, engine_pb2_grpc


class DeltaQueue:
    """Queues the deltas of one request for one caller."""

    def __init__(self, loop: EngineLoop) -> None:
        self._loop = loop
        self.key = 0  # the request's key; 0 until it is submitted
        self._outbox: Outbox[list[SequenceDelta]] = Outbox(list)
        self._overflow: Overloaded | None = None

    def deliver(self, deltas: list[SequenceDelta]) -> None:
        """Called by the engine's loop."""
        try:
            self._outbox.post(num_items(deltas)).extend(deltas)
        except Overloaded as error:
            self._overflow = error
            self._loop.detach(self.key)

    async def next(self) -> list[SequenceDelta]:
        """Waits for deltas and returns those since the last call. The request's own deadline bounds the wait.

        Raises:
            Overloaded: the caller has left too much unread.
        """
        if self._overflow is not None:
            raise self._overflow
        return await self._outbox.next() or []


class EngineServicer(engine_pb2_grpc.EngineServiceServicer):
    """The methods of protos/quire/v1/engine.proto, which documents them."""

    def __init__(self, worker: EngineWorker, tracer: Tracer | None = None) -> None:
        self._worker = worker
        self._traces = None if tracer is None else EngineTraces(tracer)

    async def Generate(
        self, request: engine_pb2.EngineServiceGenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.EngineServiceGenerateResponse]:
        check_whole(request.generation)
        queue = DeltaQueue(self._worker.loop)
        queue.key = self._worker.submit(to_request(request.generation, current_request_id()), queue)
        if self._traces is not None:
            self._traces.started(queue.key, request.generation)
        try:
            while True:
                for delta in await queue.next():
                    if self._traces is not None:
                        self._traces.delivered(delta)
                    if delta.error is not None:
                        raise delta.error
                    yield _generate_response(delta)
                    if delta.is_final:
                        return
        finally:
            self._worker.loop.detach(queue.key)
            if self._traces is not None:
                self._traces.left(queue.key)

    def Session(
        self,
        request_iterator: AsyncIterator[engine_pb2.EngineServiceSessionRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[engine_pb2.EngineServiceSessionResponse]:
        return EngineSession(self._worker, self._traces).frames(request_iterator)

    async def Pool(self, request: common_pb2.PoolRequest, context: grpc.aio.ServicerContext) -> common_pb2.PoolResponse:
        answer = OnlyDelta()
        pooling = to_pooling_request(request, current_request_id(), context.time_remaining())
        key = self._worker.pool(pooling, answer)
        try:
            return from_pooled(await answer.result())
        finally:
            self._worker.loop.detach(key)

    async def Abort(
        self, request: engine_pb2.AbortRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.AbortResponse:
        return engine_pb2.AbortResponse(aborted=self._worker.loop.abort_requests(request.request_ids))

    async def GetModelInfo(
        self, request: engine_pb2.GetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.GetModelInfoResponse:
        return engine_pb2.GetModelInfoResponse(
            model_info=from_model_info(self._worker.info, self._worker.adapters.adapters)
        )

    async def GetLoad(
        self, request: engine_pb2.GetLoadRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.GetLoadResponse:
        return engine_pb2.GetLoadResponse(load=from_load(self._worker.load_now()))

    def SubscribeKvEvents(
        self, request: engine_pb2.SubscribeKvEventsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.SubscribeKvEventsResponse]:
        return kv_events(self._worker, request.from_sequence, request.epoch)

    def PullKvBlocks(
        self, request: engine_pb2.PullKvBlocksRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.PullKvBlocksResponse]:
        return kv_blocks(self._worker, request)

    def EncodeMedia(
        self, request: engine_pb2.EncodeMediaRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.EncodeMediaResponse]:
        return encoded_media(self._worker, request, current_request_id(), context.time_remaining())

    async def LoadAdapter(
        self, request: engine_pb2.LoadAdapterRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.LoadAdapterResponse:
        adapters = self._worker.adapters
        adapter = await adapters.load(request.name, request.path, request.base_model_name, request.in_place)
        return engine_pb2.LoadAdapterResponse(adapter=from_adapter(adapter))

    async def UnloadAdapter(
        self, request: engine_pb2.UnloadAdapterRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.UnloadAdapterResponse:
        left = await self._worker.adapters.unload(request.name, request.wait_ms / 1000)
        return engine_pb2.UnloadAdapterResponse(live_requests=left)


def _generate_response(delta: SequenceDelta) -> engine_pb2.EngineServiceGenerateResponse:
    session_frame = engine_pb2.EngineServiceSessionResponse()
    add_delta(session_frame.deltas, delta, 0)
    return engine_pb2.EngineServiceGenerateResponse(delta=session_frame.deltas[0])
