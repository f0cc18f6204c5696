"""A gateway's view of a router: one session, with what arrives sorted by request."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import grpc

from quire.errors import QuireError
from quire.options.server import RpcSecurityOptions
from quire.rpc.channel import call_metadata, open_channel
from quire.rpc.status import from_request_error
from quire.v1 import common_pb2, engine_pb2, router_pb2, router_pb2_grpc
from tests.support.waiting import WAIT_SECONDS

Metadata = tuple[tuple[str, str], ...]


def generation(
    prompt: Sequence[int], max_tokens: int | None = None, n: int = 1, request_id: str = "", **fields: object
) -> common_pb2.Generation:
    sampling = common_pb2.SamplingParams(n=n, max_tokens=max_tokens)
    return common_pb2.Generation(prompt_token_ids=prompt, sampling=sampling, request_id=request_id, **fields)


def recording(audio: bytes, *, goes_on: bool = False) -> common_pb2.Image:
    inputs = [common_pb2.ImageInput(name="input_features", data=audio)]
    return common_pb2.Image(offset=1, num_tokens=2, inputs=inputs, goes_on=goes_on)


@dataclass
class Output:
    """What came for one request."""

    tokens: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    scored: dict[int, int] = field(default_factory=lambda: defaultdict(int))  # positions with log-probabilities
    error: QuireError | None = None
    usage: common_pb2.GenerationUsage = field(default_factory=common_pb2.GenerationUsage)
    finals: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, delta: common_pb2.GenerationDelta) -> None:
        self.tokens[delta.choice_index] += delta.token_ids
        self.scored[delta.choice_index] += len(delta.logprobs)
        if delta.HasField("error"):
            self.error = from_request_error(delta.error)
        if delta.is_final:
            self.finals += 1
            self.usage = delta.usage
            self.ended.set()
        self.changed.set()

    async def wait_ended(self) -> Output:
        await asyncio.wait_for(self.ended.wait(), WAIT_SECONDS)
        return self

    async def wait_tokens(self) -> Output:
        """Until the first delta is here."""
        await asyncio.wait_for(self.changed.wait(), WAIT_SECONDS)
        return self


class GatewaySession:
    """One Session call."""

    def __init__(self, call: grpc.aio.StreamStreamCall) -> None:
        self.call = call
        self.outputs: dict[int, Output] = defaultdict(Output)
        self.ready_workers: list[int] = []  # one for each heartbeat
        self.queues: dict[str, int] = {}
        self.draining = False

    async def start(self, stream_id: int, request: common_pb2.Generation) -> Output:
        frame = router_pb2.RouterServiceSessionRequest()
        frame.starts.add(stream_id=stream_id, generation=request)
        await self.call.write(frame)
        return self.outputs[stream_id]

    async def abort(self, *stream_ids: int) -> None:
        await self.call.write(router_pb2.RouterServiceSessionRequest(abort_stream_ids=stream_ids))

    async def stop(self, stream_id: int, choice: int, count: int) -> None:
        """A stop string ends with the choice's token number `count`."""
        stop = engine_pb2.SequenceStop(stream_id=stream_id, choice_index=choice, num_output_tokens=count)
        await self.call.write(router_pb2.RouterServiceSessionRequest(stops=[stop]))

    async def hear(self, stream_id: int, audio: bytes, *, is_last: bool = False) -> None:
        """Audio with which a recording goes on; any bytes."""
        append = engine_pb2.AudioAppend(stream_id=stream_id, audio=recording(audio), is_last=is_last)
        await self.call.write(router_pb2.RouterServiceSessionRequest(appends=[append]))

    async def read(self) -> None:
        async for frame in self.call:
            if frame.HasField("ready_workers"):
                self.ready_workers.append(frame.ready_workers)
                self.draining = frame.draining
                self.queues = {queue.model: queue.requests for queue in frame.queues}
            for delta in frame.deltas:
                self.outputs[delta.stream_id].take(delta)


class RouterClient:
    """Calls of one router."""

    def __init__(self, channel: grpc.aio.Channel, metadata: Metadata) -> None:
        self.stub = router_pb2_grpc.RouterServiceStub(channel)
        self._metadata = metadata

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncIterator[GatewaySession]:
        session = GatewaySession(self.stub.Session(metadata=self._metadata))
        reader = asyncio.create_task(session.read())
        try:
            yield session
        finally:
            session.call.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def generate(self, request: common_pb2.Generation, timeout: float = WAIT_SECONDS) -> list[int]:
        message = router_pb2.RouterServiceGenerateRequest(generation=request)
        call = self.stub.Generate(message, timeout=timeout, metadata=self._metadata)
        return [token async for answer in call for token in answer.delta.token_ids]

    async def workers(self) -> dict[str, router_pb2.Worker]:
        answer = await self.stub.ListWorkers(
            router_pb2.ListWorkersRequest(), timeout=WAIT_SECONDS, metadata=self._metadata
        )
        return {worker.address: worker for worker in answer.workers}

    async def explain(self, request_id: str, **weights: float) -> router_pb2.ExplainPlacementResponse:
        request = router_pb2.ExplainPlacementRequest(
            request_id=request_id, weights=router_pb2.PlacementWeights(**weights)
        )
        answer: router_pb2.ExplainPlacementResponse
        answer = await self.stub.ExplainPlacement(request, timeout=WAIT_SECONDS, metadata=self._metadata)
        return answer

    async def wait_state(self, address: str, state: int, seconds: float = WAIT_SECONDS) -> router_pb2.Worker:
        """Until the worker is in the state."""
        async with asyncio.timeout(seconds):
            while True:
                worker = (await self.workers()).get(address)
                if worker is not None and worker.state == state:
                    return worker
                await asyncio.sleep(0.02)

    async def wait_ready(self, *addresses: str) -> None:
        for address in addresses:
            await self.wait_state(address, router_pb2.WORKER_STATE_READY)


@contextlib.asynccontextmanager
async def connect(port: int, security: RpcSecurityOptions | None = None) -> AsyncIterator[RouterClient]:
    trust = security or RpcSecurityOptions()
    async with open_channel(f"127.0.0.1:{port}", trust) as channel:
        yield RouterClient(channel, call_metadata(trust))
