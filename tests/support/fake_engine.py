"""A worker without a model: the real gRPC contract of EngineService over real sockets, with made-up tokens.

Use it in the test's own process (`FakeEngine`), or as a process of its own, to be killed or frozen (engine_process.py).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

import grpc
from prometheus_client import CollectorRegistry

from quire.block_hash import block_keys
from quire.errors import PREFILLED, FailedPrecondition, InvalidRequest, NotFound, QuireError, Unavailable
from quire.images import contents_of
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.rpc.context import current_request_id, outgoing_metadata
from quire.rpc.images import to_images
from quire.rpc.server import GrpcServer
from quire.rpc.session import Outbox
from quire.rpc.settings import HEARTBEAT_SECONDS
from quire.rpc.status import to_request_error
from quire.v1 import common_pb2, engine_pb2, engine_pb2_grpc
from tests.support.fake_cache import FakeCache
from tests.support.fake_pooling import EMBEDDER, FakePooling

VOCAB_SIZE = 50000


def expected_tokens(prompt: Sequence[int], count: int, choice: int = 0) -> list[int]:
    """The output of every fake engine for a prompt."""
    return [(sum(prompt) + 7 * position + 31 * choice) % VOCAB_SIZE for position in range(count)]


@dataclass(frozen=True)
class FakeOptions:
    """How the fake behaves."""

    models: tuple[str, ...] = ("fake",)
    # Time between two steps; each step gives every live request one token per sequence.
    step_seconds: float = 0.005
    # Tokens for requests that set no max_tokens.
    default_max_tokens: int = 1_000_000
    # Requests are accepted and get no token.
    silent: bool = False
    # It answers calls but does nothing, as when its engine hangs in a step.
    wedged: bool = False
    # Number of a token, from 0 → how many tokens later the sequence continues: 1 loses a token, -1 repeats one.
    slips: Mapping[int, int] = field(default_factory=dict)
    # Every request ends with this before its first token.
    start_error: QuireError | None = None
    total_kv_blocks: int = 1000
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 1 << 20
    fingerprint: str = "fake"
    prompt_embeds_size: int = 0
    # If it returns routed experts: of a token at position p, each number is p.
    routed_experts: common_pb2.RoutedExpertsForm | None = None
    # Versions of the weights that compute its tokens, by the first token of each choice that has another one.
    weight_versions: Mapping[int, str] = field(default_factory=dict)
    accepts_images: bool = False
    architecture: str = ""
    # How it exchanges blocks: as a kv_producer, requests that hand over end after this many tokens.
    kv_role: str = ""
    kv_connector: str = ""
    prefilled_after: int = 3
    # Whether it encodes for others (runner encode, ec_producer), or has others encode (ec_consumer).
    runner: str = "generate"
    ec_role: str = ""
    encoder_fingerprint: str = ""
    # Of its generation config.
    max_new_tokens: int | None = None
    # 0 where it has no adapters. Folders that it finds broken.
    max_loras: int = 0
    broken_folders: tuple[str, ...] = ()
    # Where it is served for pooling; see FakePooling.
    pooling: common_pb2.PoolingInfo | None = None


@dataclass(eq=False)
class Request:
    """A live request."""

    stream_id: int
    generation: common_pb2.Generation
    outbox: Outbox[engine_pb2.EngineServiceSessionResponse]
    limit: int
    # Tokens of each sequence, including those that another worker has generated.
    produced: list[int] = field(default_factory=list)
    # Sequences in which the caller found a stop string, and how many of their tokens count.
    stopped: dict[int, int] = field(default_factory=dict)
    cached_tokens: int = 0
    hands_over: bool = False
    # With which its recording has gone on.
    heard: list[engine_pb2.AudioAppend] = field(default_factory=list)

    def __post_init__(self) -> None:
        progress = self.generation.progress
        self.produced = [len(each.token_ids) for each in progress] or [0] * max(1, self.generation.sampling.n)
        for choice, each in enumerate(progress):
            assert list(each.token_ids) == expected_tokens(
                self.generation.prompt_token_ids, len(each.token_ids), choice
            )
            assert each.finished or len(each.token_ids) < self.limit
            if each.finished:
                self.stopped[choice] = len(each.token_ids)

    @property
    def sequences(self) -> int:
        return len(self.alive)

    @property
    def alive(self) -> list[int]:
        """Sequences that have not ended."""
        choices = enumerate(self.produced)
        return [choice for choice, count in choices if count < max(1, self.limit) and choice not in self.stopped]

    @property
    def completion_tokens(self) -> int:
        return sum(self.stopped.get(choice, count) for choice, count in enumerate(self.produced))


@dataclass
class Record:
    """What the fake has seen, for tests to look at."""

    started: list[common_pb2.Generation] = field(default_factory=list)
    handed_over: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    # (request id, choice, tokens that count)
    stopped: list[tuple[str, int, int]] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)


class FakeEngine(engine_pb2_grpc.EngineServiceServicer):
    """Serves until `close`. `options` may be replaced while it runs."""

    def __init__(
        self,
        options: FakeOptions | None = None,
        server: GrpcServerOptions | None = None,
        security: RpcSecurityOptions | None = None,
    ) -> None:
        self.options = options or FakeOptions()
        self.record = Record()
        self.cache = FakeCache()
        self.steps = 0
        self.live: set[Request] = set()
        self.counters = common_pb2.EngineCounters()
        # Values that it reports as its load, in addition to what it knows.
        self.extra_load = common_pb2.EngineLoad()
        self.adapters: dict[str, common_pb2.AdapterInfo] = {}
        self.adapters_version = 0
        self.num_loads = 0  # of adapters that have begun
        self.may_load = asyncio.Event()  # they end
        self.may_load.set()
        self.pooling = FakePooling()
        self.rpc = GrpcServer(
            "engine", "quire.v1.EngineService", server or GrpcServerOptions(), security or RpcSecurityOptions(),
            CollectorRegistry(),
        )  # fmt: skip
        engine_pb2_grpc.add_EngineServiceServicer_to_server(self, self.rpc.server)
        self._steps: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.rpc.port}"

    async def start(self) -> FakeEngine:
        await self.rpc.start()
        await self.begin()
        return self

    async def begin(self) -> None:
        """Its model is loaded."""
        await self.rpc.set_serving(True)
        self._steps = asyncio.create_task(self._run_steps())

    async def close(self) -> None:
        if self._steps:
            self._steps.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._steps
        await self.rpc.server.stop(grace=None)

    def fail_all(self, error: QuireError) -> None:
        """Every live request ends with the error."""
        for request in self.live:
            _post_error(request.outbox, request.stream_id, error)
        self.live.clear()

    async def drain(self) -> None:
        while self.live:
            await asyncio.sleep(0.01)

    async def Session(
        self, request_iterator: AsyncIterator[engine_pb2.EngineServiceSessionRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.EngineServiceSessionResponse]:
        self.record.metadata.append(dict(context.invocation_metadata()))
        outbox = Outbox(engine_pb2.EngineServiceSessionResponse)
        reader = asyncio.create_task(self._read(request_iterator, outbox))
        try:
            while True:
                frame = await outbox.next(HEARTBEAT_SECONDS) or engine_pb2.EngineServiceSessionResponse()
                frame.load.CopyFrom(self._load())
                yield frame
        finally:
            reader.cancel()
            for request in [request for request in self.live if request.outbox is outbox]:
                self._abort(request)

    async def Generate(
        self, request: engine_pb2.EngineServiceGenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.EngineServiceGenerateResponse]:
        outbox = Outbox(engine_pb2.EngineServiceSessionResponse)
        self._start(0, request.generation, outbox)
        try:
            final = False
            while not final:
                frame = await outbox.next()
                for delta in frame.deltas:
                    yield engine_pb2.EngineServiceGenerateResponse(delta=delta)
                    final = final or delta.is_final
        finally:
            for live in [live for live in self.live if live.outbox is outbox]:
                self._abort(live)

    async def Abort(
        self, request: engine_pb2.AbortRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.AbortResponse:
        hit = [live for live in self.live if live.generation.request_id in request.request_ids]
        for live in hit:
            self._abort(live)
        return engine_pb2.AbortResponse(aborted=len(hit))

    async def SubscribeKvEvents(
        self, request: engine_pb2.SubscribeKvEventsRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[engine_pb2.SubscribeKvEventsResponse]:
        async for batch in self.cache.subscribe(request):
            yield batch

    async def GetModelInfo(
        self, request: engine_pb2.GetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.GetModelInfoResponse:
        self.record.metadata.append(dict(context.invocation_metadata()))
        info = common_pb2.ModelInfo(
            served_model_names=self.options.models, model=self.options.models[0], max_model_len=4096,
            vocab_size=VOCAB_SIZE, block_size=self.options.block_size, num_kv_blocks=self.options.total_kv_blocks,
            max_num_seqs=self.options.max_num_seqs, max_num_batched_tokens=self.options.max_num_batched_tokens,
            max_logprobs=20, fingerprint=self.options.fingerprint,
            prompt_embeds_size=self.options.prompt_embeds_size, accepts_images=self.options.accepts_images,
            architecture=self.options.architecture, model_type="fake_type",
            default_sampling=common_pb2.SamplingParams(max_tokens=self.options.max_new_tokens),
            adapters=self.adapters.values(), max_loras=self.options.max_loras,
            runner="pooling" if self.options.pooling else self.options.runner, pooling=self.options.pooling,
            kv_role=self.options.kv_role, kv_connector=self.options.kv_connector,
            ec_role=self.options.ec_role, encoder_fingerprint=self.options.encoder_fingerprint,
            routed_experts=self.options.routed_experts,
        )  # fmt: skip
        return engine_pb2.GetModelInfoResponse(model_info=info)

    async def GetLoad(
        self, request: engine_pb2.GetLoadRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.GetLoadResponse:
        if current_request_id() == "fail-with-error-info":
            raise InvalidRequest("Told to fail.", parameter="load", reason="TOLD_TO_FAIL")
        if current_request_id() == "fail-unexpectedly":
            raise ZeroDivisionError("secret")
        if current_request_id() == "sleep":
            await asyncio.sleep(3600)
        self.record.metadata.append(dict(outgoing_metadata()))
        return engine_pb2.GetLoadResponse(load=self._load())

    async def Pool(self, request: common_pb2.PoolRequest, context: grpc.aio.ServicerContext) -> common_pb2.PoolResponse:
        return await self.pooling.answer(request, self.options.pooling)

    async def LoadAdapter(
        self, request: engine_pb2.LoadAdapterRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.LoadAdapterResponse:
        if not self.options.max_loras:
            raise FailedPrecondition("no adapters are served")
        self.num_loads += 1
        await self.may_load.wait()
        if request.path in self.options.broken_folders:
            raise InvalidRequest(f"{request.path} is broken", parameter="path")
        revision = hashlib.sha256(request.path.encode()).hexdigest()
        known = self.adapters.get(request.name)
        if known and known.revision != revision and not request.in_place:
            raise InvalidRequest(f"{request.name} is another", parameter="name")
        self.adapters[request.name] = common_pb2.AdapterInfo(
            name=request.name, path=request.path, revision=revision, base_model_name=request.base_model_name
        )
        self.adapters_version += 1
        return engine_pb2.LoadAdapterResponse(adapter=self.adapters[request.name])

    async def UnloadAdapter(
        self, request: engine_pb2.UnloadAdapterRequest, context: grpc.aio.ServicerContext
    ) -> engine_pb2.UnloadAdapterResponse:
        if request.name not in self.adapters:
            raise NotFound(f"{request.name} is not here", parameter="name")
        del self.adapters[request.name]
        self.adapters_version += 1
        live = sum(live.generation.model == request.name for live in self.live)
        return engine_pb2.UnloadAdapterResponse(live_requests=live)

    async def _read(
        self,
        frames: AsyncIterator[engine_pb2.EngineServiceSessionRequest],
        outbox: Outbox[engine_pb2.EngineServiceSessionResponse],
    ) -> None:
        async for frame in frames:
            for start in frame.starts:
                try:
                    self._start(start.stream_id, start.generation, outbox, hands_over=start.hands_over)
                except QuireError as error:
                    _post_error(outbox, start.stream_id, error)
            for stop in frame.stops:
                for request in [r for r in self.live if r.outbox is outbox and r.stream_id == stop.stream_id]:
                    self._stop(request, stop)
            for append in frame.appends:
                for request in [r for r in self.live if r.outbox is outbox and r.stream_id == append.stream_id]:
                    request.heard.append(append)
            for stream_id in frame.abort_stream_ids:
                for request in [r for r in self.live if r.outbox is outbox and r.stream_id == stream_id]:
                    self._abort(request)

    def _start(
        self,
        stream_id: int,
        generation: common_pb2.Generation,
        outbox: Outbox[engine_pb2.EngineServiceSessionResponse],
        *,
        hands_over: bool = False,
    ) -> None:
        if self.options.start_error:
            raise self.options.start_error
        adapter = self.adapters.get(generation.model)
        if generation.model and generation.model not in self.options.models and not adapter:
            raise NotFound(f"{generation.model} is not here", parameter="model")
        self.record.started.append(generation)
        sampling = generation.sampling
        limit = sampling.max_tokens if sampling.HasField("max_tokens") else self.options.default_max_tokens
        request = Request(stream_id, generation, outbox, limit, hands_over=hands_over)
        revision = adapter.revision if adapter else ""
        size = self.options.block_size
        contents = contents_of(to_images(generation.images))
        keys = block_keys(list(generation.prompt_token_ids), size, generation.cache_salt, contents, revision)
        # As in an engine, the last token is computed in any case.
        request.cached_tokens = min(self.cache.covered(keys), (len(generation.prompt_token_ids) - 1) // size) * size
        self.cache.store(keys)
        self.live.add(request)

    def _abort(self, request: Request) -> None:
        self.live.discard(request)
        self.record.aborted.append(request.generation.request_id)

    def _stop(self, request: Request, stop: engine_pb2.SequenceStop) -> None:
        if stop.choice_index in request.alive:
            request.stopped[stop.choice_index] = stop.num_output_tokens
            self.record.stopped.append((request.generation.request_id, stop.choice_index, stop.num_output_tokens))
            delta = request.outbox.post().deltas.add(
                stream_id=request.stream_id, choice_index=stop.choice_index, finish_reason=common_pb2.FINISH_REASON_STOP
            )
            self._note_end(request, delta)

    def _note_end(self, request: Request, delta: common_pb2.GenerationDelta) -> None:
        """Makes the delta the final one if it ends the request's last sequence."""
        if not request.sequences:
            delta.is_final = True
            delta.usage.prompt_tokens = len(request.generation.prompt_token_ids)
            delta.usage.completion_tokens = request.completion_tokens
            delta.usage.cached_prompt_tokens = request.cached_tokens
            self.live.discard(request)
            self.record.finished.append(request.generation.request_id)

    async def _run_steps(self) -> None:
        while True:
            await asyncio.sleep(self.options.step_seconds)
            if self.options.wedged:
                continue
            self.steps += 1
            if not self.options.silent:
                for request in list(self.live):
                    self._step(request)

    def _weight_version(self, produced: int) -> str:
        versions = self.options.weight_versions
        return next((versions[first] for first in sorted(versions, reverse=True) if first <= produced), "")

    def _step(self, request: Request) -> None:
        prompt = request.generation.prompt_token_ids
        for choice in request.alive:
            request.produced[choice] += self.options.slips.get(request.produced[choice], 0)
            produced = request.produced[choice]
            token = (sum(prompt) + 7 * produced + 31 * choice) % VOCAB_SIZE
            tokens = [token]
            if not request.limit:  # the prompt alone is computed
                tokens, request.stopped[choice] = [], 0
            delta = request.outbox.post().deltas.add(
                stream_id=request.stream_id, choice_index=choice, token_ids=tokens,
                num_previous_tokens=produced if tokens else None, weight_version=self._weight_version(produced),
            )  # fmt: skip
            _score(request, delta)
            if (form := self.options.routed_experts) and tokens:
                known, start = len(prompt) + produced, request.generation.sampling.routed_experts_prompt_start
                positions = range(start if not produced else known - 1, known)
                width = form.num_layers * form.experts_per_token
                row = [position.to_bytes(form.id_bytes, "little") * width for position in positions]
                delta.routed_experts.append(b"".join(row))
            request.produced[choice] += len(tokens)
            self.counters.generation_tokens += len(tokens)
            if produced + 1 >= request.limit:
                delta.finish_reason = common_pb2.FINISH_REASON_LENGTH
        self._note_end(request, delta)
        if request.hands_over and request in self.live and min(request.produced) >= self.options.prefilled_after:
            self.live.discard(request)
            self.record.handed_over.append(request.generation.request_id)
            delta = request.outbox.post().deltas.add(
                stream_id=request.stream_id, finish_reason=common_pb2.FINISH_REASON_ERROR, is_final=True,
                error=to_request_error(Unavailable("Another worker continues.", reason=PREFILLED)),
            )  # fmt: skip
            delta.usage.cached_prompt_tokens = request.cached_tokens

    def _load(self) -> common_pb2.EngineLoad:
        silent = self.options.silent
        load = common_pb2.EngineLoad(
            running_sequences=0 if silent else sum(request.sequences for request in self.live),
            waiting_requests=len(self.live) if silent else 0,
            used_kv_blocks=len(self.live),
            total_kv_blocks=self.options.total_kv_blocks,
            step=self.steps,
            busy=bool(self.live),
            counters=self.counters,
            adapters_version=self.adapters_version,
        )
        used = Counter(live.generation.model for live in self.live if live.generation.model in self.adapters)
        for name, count in used.items():
            load.adapters.add(name=name, on_device=True, running_sequences=count)
        load.MergeFrom(self.extra_load)
        return load


def _post_error(outbox: Outbox[engine_pb2.EngineServiceSessionResponse], stream_id: int, error: QuireError) -> None:
    outbox.post().deltas.add(
        stream_id=stream_id, finish_reason=common_pb2.FINISH_REASON_ERROR, is_final=True, error=to_request_error(error)
    )


def _score(request: Request, delta: common_pb2.GenerationDelta) -> None:
    """Made-up log-probabilities: -0.5 for the token itself, then -1, -2, ... for requested ids, or the ids after it."""
    sampling = request.generation.sampling
    for token in delta.token_ids if sampling.HasField("logprobs") else ():
        others = list(sampling.logprob_token_ids) or [token + 1 + number for number in range(sampling.logprobs)]
        delta.logprobs.add(
            token_ids=[token, *others], logprobs=[-0.5, *(-1.0 - number for number in range(len(others)))], rank=1
        )
    if sampling.HasField("prompt_logprobs") and not request.produced[0] and not delta.choice_index:
        for prompt_token in request.generation.prompt_token_ids[1:]:
            delta.prompt_logprobs.add(token_ids=[prompt_token], logprobs=[-0.25], rank=3)


async def _main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--step-ms", type=float, default=5.0)
    parser.add_argument("--silent", action="store_true")
    parser.add_argument("--models", nargs="+", default=["fake"])
    parser.add_argument("--pooling", action="store_true")
    parser.add_argument("--held", action="store_true")
    arguments = parser.parse_args()
    options = FakeOptions(
        models=tuple(arguments.models), step_seconds=arguments.step_ms / 1000, silent=arguments.silent,
        pooling=EMBEDDER if arguments.pooling else None,
    )  # fmt: skip
    engine = await FakeEngine(options, GrpcServerOptions(port=arguments.port)).start()
    if arguments.held:
        engine.pooling.hold()
    await engine.rpc.serve_until_stopped(engine.drain)
    await engine.close()


def run() -> None:
    """Runs the fake engine as a process of its own."""
    asyncio.run(_main())
