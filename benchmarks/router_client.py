"""A router client like a gateway: many requests over one session, with the arrival time of each token."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from quire.options.server import RpcSecurityOptions
from quire.rpc.channel import open_channel
from quire.rpc.settings import CALL_SECONDS
from quire.v1 import common_pb2, router_pb2, router_pb2_grpc

_NOT_SECURED = RpcSecurityOptions()
_REQUEST_SECONDS = 300.0
_READY_SECONDS = 60.0
_SETTLE_SECONDS = 5.0


@dataclass
class Answer:
    """The answer to one request."""

    stream_id: int
    sent: float
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # arrival times of deltas with tokens
    error: str = ""
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def longest_gap(self) -> float:
        """The longest time between two tokens, in seconds."""
        return max((later - earlier for earlier, later in itertools.pairwise(self.times)), default=0.0)

    async def wait_ended(self) -> Answer:
        """Waits until the answer is complete.

        Raises:
            TimeoutError: it takes too long.
        """
        await asyncio.wait_for(self.ended.wait(), _REQUEST_SECONDS)
        return self

    def take(self, delta: common_pb2.GenerationDelta) -> None:
        """Adds a delta."""
        if delta.token_ids:
            self.token_ids += delta.token_ids
            self.times.append(time.monotonic())
        self.logprobs += [entry.logprobs[0] for entry in delta.logprobs]
        if delta.HasField("error"):
            self.error = delta.error.message
        if delta.is_final:
            self.ended.set()


class RouterClient:
    """One session with a router, and its calls."""

    def __init__(self, stub: router_pb2_grpc.RouterServiceStub) -> None:
        self._stub = stub
        self._session: grpc.aio.StreamStreamCall = stub.Session()
        self._writing = asyncio.Lock()  # one write at a time
        self._ids = itertools.count(1)
        self._answers: dict[int, Answer] = {}

    async def start(self, generation: common_pb2.Generation) -> Answer:
        """Sends a request; its answer is filled as deltas arrive."""
        stream_id = next(self._ids)
        frame = router_pb2.RouterServiceSessionRequest()
        frame.starts.add(stream_id=stream_id, generation=generation)
        answer = self._answers[stream_id] = Answer(stream_id, time.monotonic())
        async with self._writing:
            await self._session.write(frame)
        return answer

    async def complete(self, generation: common_pb2.Generation) -> Answer:
        """Sends a request and waits for its end."""
        return await (await self.start(generation)).wait_ended()

    async def abort(self, answers: Sequence[Answer]) -> None:
        """Aborts requests."""
        stream_ids = [answer.stream_id for answer in answers]
        async with self._writing:
            await self._session.write(router_pb2.RouterServiceSessionRequest(abort_stream_ids=stream_ids))

    async def workers(self) -> list[router_pb2.Worker]:
        """All workers that the router knows."""
        answer = await self._stub.ListWorkers(router_pb2.ListWorkersRequest(), timeout=CALL_SECONDS)
        return list(answer.workers)

    async def placement(self, request_id: str) -> router_pb2.ExplainPlacementResponse:
        """The last placement of a request."""
        request = router_pb2.ExplainPlacementRequest(request_id=request_id)
        answer: router_pb2.ExplainPlacementResponse = await self._stub.ExplainPlacement(request, timeout=CALL_SECONDS)
        return answer

    async def wait_ready(self, count: int) -> None:
        """Waits until exactly `count` workers are ready.

        Raises:
            RuntimeError: they do not become ready in time; the text has their states.
        """
        deadline = time.monotonic() + _READY_SECONDS
        while True:
            workers = await self.workers()
            if sum(each.state == router_pb2.WORKER_STATE_READY for each in workers) == count:
                return
            if time.monotonic() > deadline:
                states = "\n".join(f"{each.address} {each.state} {each.reason}" for each in workers)
                raise RuntimeError(f"not {count} workers are ready; see .cache/logs\n{states}")
            await asyncio.sleep(0.05)

    async def blocks_left(self) -> int:
        """KV blocks that workers hold for requests; waits for a while for the number to become 0."""
        deadline = time.monotonic() + _SETTLE_SECONDS
        while blocks := sum(worker.load.used_kv_blocks for worker in await self.workers()):
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(0.05)
        return blocks

    async def read(self) -> None:
        """Receives deltas until the session ends; requests that are unfinished then have failed."""
        try:
            async for frame in self._session:
                for delta in frame.deltas:
                    self._answers[delta.stream_id].take(delta)
        except grpc.aio.AioRpcError as error:
            for answer in self._answers.values():
                if not answer.ended.is_set():
                    answer.error = error.details() or error.code().name
                    answer.ended.set()

    def cancel(self) -> None:
        """Ends the session."""
        self._session.cancel()


@asynccontextmanager
async def connect(address: str) -> AsyncIterator[RouterClient]:
    """A client of the router at an address."""
    async with open_channel(address, _NOT_SECURED) as channel:
        client = RouterClient(router_pb2_grpc.RouterServiceStub(channel))
        reader = asyncio.create_task(client.read())
        try:
            yield client
        finally:
            client.cancel()
            await asyncio.gather(reader, return_exceptions=True)
