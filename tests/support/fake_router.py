"""A router without workers: the real contract of RouterService over real sockets, with outputs that the test writes.

It honors `progress`: a generation that has moved here continues where the previous router left off.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

import grpc
from prometheus_client import CollectorRegistry

from quire.errors import QuireError, Unavailable
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.rpc.server import GrpcServer
from quire.rpc.session import Outbox
from quire.rpc.settings import HEARTBEAT_SECONDS
from quire.rpc.status import to_request_error
from quire.v1 import common_pb2, router_pb2, router_pb2_grpc

BLOCK_SIZE = 4
VOCAB_SIZE = 50000
CACHED_TOKENS = 3
_STEP_SECONDS = 0.001

Response = router_pb2.RouterServiceSessionResponse


@dataclass(eq=False)
class FakeStream:
    """A live generation."""

    stream_id: int
    generation: common_pb2.Generation
    outbox: Outbox[Response]
    outputs: list[list[int]]
    positions: list[int]
    ended: list[bool]
    # Tokens of each choice after which nothing more comes.
    hold: int | None


@dataclass
class FakeRouterState:
    """How the fake behaves, which tests change while it runs, and what it has seen."""

    # Tokens of each choice, the last one of which is its end; choices beyond them get the last one's.
    outputs: Sequence[Sequence[int]] = ((32, 33, 34, 35, 36, 37),)
    # How many tokens of a choice come in its next piece.
    piece: Callable[[], int] = lambda: 1
    # New generations (without progress) get so many tokens of each choice and no more.
    hold: int | None = None
    # Like a stopped process: it reads nothing, sends nothing and answers nothing.
    frozen: bool = False
    # What each generation ends with.
    refusal: QuireError | None = None
    # What its heartbeats say.
    draining: bool = False
    # Each session ends as soon as a generation is started in it.
    drops: bool = False
    # There are no sessions; other calls are answered.
    closed: bool = False
    started: list[common_pb2.Generation] = field(default_factory=list)
    aborted: list[int] = field(default_factory=list)
    # (choice, tokens that count); and whether nothing comes of stops.
    stopped: list[tuple[int, int]] = field(default_factory=list)
    ignores_stops: bool = False


class FakeRouter(router_pb2_grpc.RouterServiceServicer):
    """Serves until `close`."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._host = host
        self.state = FakeRouterState()
        self.live: list[FakeStream] = []
        self.outboxes: list[Outbox[Response]] = []
        self.rpc = GrpcServer(
            "router", "quire.v1.RouterService", GrpcServerOptions(host, port, insecure=True), RpcSecurityOptions(),
            CollectorRegistry(),
        )  # fmt: skip
        router_pb2_grpc.add_RouterServiceServicer_to_server(self, self.rpc.server)
        self._steps: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return f"{self._host}:{self.rpc.port}"

    @property
    def holding(self) -> bool:
        """Whether all live generations are held back."""
        return bool(self.live) and all(
            ended or position == stream.hold
            for stream in self.live
            for position, ended in zip(stream.positions, stream.ended, strict=True)
        )

    async def start(self) -> FakeRouter:
        await self.rpc.start()
        self._steps = asyncio.create_task(self._run_steps())
        return self

    async def close(self) -> None:
        """Ends at once: connections are cut."""
        if self._steps:
            self._steps.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._steps
        await self.rpc.server.stop(grace=None)

    async def ListWorkers(
        self, request: router_pb2.ListWorkersRequest, context: grpc.aio.ServicerContext
    ) -> router_pb2.ListWorkersResponse:
        await self._thawed()
        info = common_pb2.ModelInfo(
            served_model_names=["fake"], model="fake", max_model_len=4096, vocab_size=VOCAB_SIZE, max_logprobs=20,
            block_size=BLOCK_SIZE,
        )  # fmt: skip
        worker = router_pb2.Worker(address="fake:1", state=router_pb2.WORKER_STATE_READY, model_info=info)
        return router_pb2.ListWorkersResponse(workers=[worker])

    async def Session(
        self, request_iterator: AsyncIterator[router_pb2.RouterServiceSessionRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[Response]:
        if self.state.closed:
            raise Unavailable("closed")
        outbox = Outbox(Response)
        self.outboxes.append(outbox)
        reader = asyncio.create_task(self._read(request_iterator, outbox))
        try:
            while not (reader.done() or self.state.closed):
                frame = await outbox.next(HEARTBEAT_SECONDS) or Response(ready_workers=0, draining=self.state.draining)
                await self._thawed()
                yield frame
            raise Unavailable("The session is over.")
        finally:
            reader.cancel()
            self.outboxes.remove(outbox)
            self.live = [stream for stream in self.live if stream.outbox is not outbox]

    async def _thawed(self) -> None:
        while self.state.frozen:
            await asyncio.sleep(0.01)

    async def _read(
        self, frames: AsyncIterator[router_pb2.RouterServiceSessionRequest], outbox: Outbox[Response]
    ) -> None:
        async for frame in frames:
            await self._thawed()
            for start in frame.starts:
                self.state.started.append(start.generation)
                if self.state.drops:
                    return
                if self.state.refusal:
                    outbox.post().deltas.add(
                        stream_id=start.stream_id, finish_reason=common_pb2.FINISH_REASON_ERROR, is_final=True,
                        error=to_request_error(self.state.refusal),
                    )  # fmt: skip
                else:
                    self.live.append(self._stream(start.stream_id, start.generation, outbox))
            for stop in frame.stops:
                self.state.stopped.append((stop.choice_index, stop.num_output_tokens))
                for stream in [s for s in self.live if s.outbox is outbox and s.stream_id == stop.stream_id]:
                    self._stop(stream, stop.choice_index)
            for stream_id in frame.abort_stream_ids:
                self.state.aborted.append(stream_id)
                self.live = [s for s in self.live if s.outbox is not outbox or s.stream_id != stream_id]

    def _stream(self, stream_id: int, generation: common_pb2.Generation, outbox: Outbox[Response]) -> FakeStream:
        n, limit = max(1, generation.sampling.n), generation.sampling.max_tokens or None
        outputs = [list(self.state.outputs[min(i, len(self.state.outputs) - 1)])[:limit] for i in range(n)]
        progress = list(generation.progress)
        assert len(progress) in (0, n)
        for output, choice in zip(outputs, progress, strict=False):
            assert output[: len(choice.token_ids)] == list(choice.token_ids)
        return FakeStream(
            stream_id, generation, outbox, outputs,
            positions=[len(choice.token_ids) for choice in progress] or [0] * n,
            ended=[choice.finished for choice in progress] or [False] * n,
            hold=None if progress else self.state.hold,
        )  # fmt: skip

    async def _run_steps(self) -> None:
        while True:
            await asyncio.sleep(_STEP_SECONDS)
            for stream in [] if self.state.frozen else list(self.live):
                self._step(stream)

    def _step(self, stream: FakeStream) -> None:
        for choice, output in enumerate(stream.outputs):
            position = stream.positions[choice]
            if not stream.ended[choice] and position != stream.hold:
                self._send(stream, choice, output[position : stream.hold][: self.state.piece()])
        if all(stream.ended):
            self.live.remove(stream)

    def _send(self, stream: FakeStream, choice: int, tokens: list[int]) -> None:
        sampling, position = stream.generation.sampling, stream.positions[choice]
        delta = stream.outbox.post().deltas.add(stream_id=stream.stream_id, choice_index=choice, token_ids=tokens)
        if sampling.HasField("logprobs"):
            for place, token in enumerate(tokens, position):
                delta.logprobs.add(token_ids=[token, 32], logprobs=[-place / 8, -8.0], rank=1)
        if sampling.HasField("prompt_logprobs") and not position and not choice:
            for prompt_token in stream.generation.prompt_token_ids[1:]:
                delta.prompt_logprobs.add(token_ids=[prompt_token], logprobs=[-0.25], rank=3)
        stream.positions[choice] += len(tokens)
        if stream.positions[choice] == len(stream.outputs[choice]):
            stream.ended[choice] = True
            delta.finish_reason = common_pb2.FINISH_REASON_LENGTH
        _note_end(stream, delta)

    def _stop(self, stream: FakeStream, choice: int) -> None:
        if self.state.ignores_stops or stream.ended[choice]:
            return
        stream.ended[choice] = True
        delta = stream.outbox.post().deltas.add(
            stream_id=stream.stream_id, choice_index=choice, finish_reason=common_pb2.FINISH_REASON_STOP
        )
        _note_end(stream, delta)
        if delta.is_final:
            self.live.remove(stream)


def _note_end(stream: FakeStream, delta: common_pb2.GenerationDelta) -> None:
    if all(stream.ended):
        delta.is_final = True
        delta.usage.prompt_tokens = len(stream.generation.prompt_token_ids)
        delta.usage.completion_tokens = sum(stream.positions)
        delta.usage.cached_prompt_tokens = CACHED_TOKENS
