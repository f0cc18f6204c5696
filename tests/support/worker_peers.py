"""A worker of each kind with its engine, behind a common interface: over real sockets, and in simulated time."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence

from benchmarks.router_simulation.clock import EventClock
from benchmarks.router_simulation.engine import Engine
from benchmarks.router_simulation.job import EngineSpec
from benchmarks.router_simulation.link import SimWorker
from benchmarks.router_simulation.requests import SimRequest, Text
from quire.block_hash import block_keys
from quire.errors import QuireError
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.v1 import common_pb2, engine_pb2
from router.index.feed import KvFeed
from router.index.prefix_index import PrefixIndex
from router.workers.assignment import Assignment, ChoiceProgress
from router.workers.base import Worker
from router.workers.remote import RemoteWorker
from tests.support.fake_engine import FakeEngine, FakeOptions, expected_tokens
from tests.support.router_client import generation
from tests.support.waiting import eventually

PROMPT_TOKENS, PROMPT_BLOCKS = 40, 2
# By the number of a request. The second request outlasts its test.
OUTPUT_TOKENS = (8, 20_000, 60, 9)
_MAX_BLOCKS = 10_000


class WorkerPeer(ABC):
    """A worker, its engine, and what the engine has sent, by stream."""

    worker: Worker
    index: PrefixIndex

    def __init__(self) -> None:
        self.tokens: dict[int, list[int]] = defaultdict(list)
        self.finals: dict[int, common_pb2.GenerationDelta] = {}
        self.lost: list[QuireError] = []
        self.changes = 0

    @abstractmethod
    async def until(self, condition: Callable[[], object]) -> None:
        """Lets time pass until the condition holds."""

    @abstractmethod
    def expected(self, number: int) -> list[int]:
        """The complete expected answer to a request."""

    @abstractmethod
    def keys(self, number: int) -> Sequence[int]:
        """Keys of the full blocks of a request's prompt."""

    @abstractmethod
    def at_engine(self) -> int:
        """Number of requests that have not ended at the engine."""

    @abstractmethod
    async def drain(self) -> None:
        """Makes the engine drain: it refuses new requests, and reports this."""

    @abstractmethod
    async def die(self) -> None:
        """Ends the engine's process."""

    @abstractmethod
    async def begin_again(self) -> None:
        """Starts a new engine process in its place."""

    @abstractmethod
    async def close(self) -> None:
        """Ends everything."""

    def start(self, stream_id: int, number: int, progress: Sequence[int] | None = None) -> None:
        """Sends a request, which continues after the tokens in `progress`."""
        request = generation([number] * PROMPT_TOKENS, OUTPUT_TOKENS[number], request_id=str(number))
        come = None if progress is None else [ChoiceProgress(progress, finished=False)]
        self.worker.start_generation(stream_id, Assignment(request, "", 1, come), 0)

    def take(self, worker: Worker, frame: engine_pb2.EngineServiceSessionResponse) -> None:
        """Called when a frame has arrived."""
        assert worker is self.worker
        for delta in frame.deltas:
            assert delta.stream_id not in self.finals, "a delta behind the final one"
            self.tokens[delta.stream_id] += delta.token_ids
            if delta.is_final:
                self.finals[delta.stream_id] = delta

    def lose(self, worker: Worker, error: QuireError) -> None:
        """Called when the session has ended."""
        assert worker is self.worker
        self.lost.append(error)

    def change(self) -> None:
        """Called when the worker's state has changed."""
        self.changes += 1


class RemotePeer(WorkerPeer):
    """The worker of a real router, and an engine without a model at the other end of a socket."""

    def __init__(self, port: int) -> None:
        super().__init__()
        loop = asyncio.get_running_loop()
        self.index = PrefixIndex(_MAX_BLOCKS, loop.time)
        self._port = port
        address = f"127.0.0.1:{port}"
        feed = KvFeed(address, self.index, lambda: None)
        security = RpcSecurityOptions()
        self.worker: RemoteWorker = RemoteWorker(address, security, feed, self.take, self.lose, self.change, loop.time)

    async def open(self) -> WorkerPeer:
        """Starts engine and worker."""
        await self.begin_again()
        self.worker.start()
        return self

    async def until(self, condition: Callable[[], object]) -> None:
        await eventually(condition)

    def expected(self, number: int) -> list[int]:
        return expected_tokens([number] * PROMPT_TOKENS, OUTPUT_TOKENS[number])

    def keys(self, number: int) -> Sequence[int]:
        return block_keys([number] * PROMPT_TOKENS, 16)

    def at_engine(self) -> int:
        return len(self._engine.live)

    async def drain(self) -> None:
        await self._engine.rpc.set_serving(False)

    async def die(self) -> None:
        await self._engine.close()

    async def begin_again(self) -> None:
        self._engine = await FakeEngine(FakeOptions(), GrpcServerOptions(port=self._port)).start()

    async def close(self) -> None:
        await self.worker.close()
        await self._engine.close()


class SimulatedPeer(WorkerPeer):
    """A worker of the simulations."""

    def __init__(self) -> None:
        super().__init__()
        self._clock = EventClock()
        self.index = PrefixIndex(_MAX_BLOCKS, self._clock.time)
        self._requests = [_sim_request(number) for number in range(len(OUTPUT_TOKENS))]
        self._engine = Engine("w0", EngineSpec(tokens_per_delta=4), self._clock, lambda engine, job: None)
        self.worker: SimWorker = SimWorker(self._engine, self.index, self._clock, self._requests, 0.0)
        self.worker.on_frame, self.worker.on_lost, self.worker.on_change = self.take, self.lose, self.change

    async def until(self, condition: Callable[[], object]) -> None:
        deadline = self._clock.time() + 60
        self._clock.run(lambda: condition() or self._clock.time() > deadline)
        assert condition(), "waited a simulated minute in vain"

    def expected(self, number: int) -> list[int]:
        return self._requests[number].tokens(0, OUTPUT_TOKENS[number])

    def keys(self, number: int) -> Sequence[int]:
        return self._requests[number].keys[:PROMPT_BLOCKS]

    def at_engine(self) -> int:
        load = self._engine.load()
        return int(load.running_sequences + load.waiting_requests)

    async def drain(self) -> None:
        self._engine.drain()

    async def die(self) -> None:
        self._engine.stop()

    async def begin_again(self) -> None:
        self._engine.begin()

    async def close(self) -> None:
        """Does nothing: there are only objects."""


def _sim_request(number: int) -> SimRequest:
    text = Text().add(number, PROMPT_TOKENS).add(1000 + number, OUTPUT_TOKENS[number])
    return SimRequest(number, text.keys, PROMPT_TOKENS, OUTPUT_TOKENS[number])
