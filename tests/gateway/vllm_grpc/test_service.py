"""The service vllm.grpc.engine.VllmEngine, called as other gateways do, over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import io
import json
import zipfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio
from smg_grpc_proto import vllm_engine_pb2 as pb
from smg_grpc_proto import vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from gateway.app import create_app
from gateway.endpoints import completions
from gateway.vllm_grpc.calls import Calls
from gateway.vllm_grpc.server import make_grpc_server
from quire.errors import StartupError
from quire.options.gateway import GatewayOptions
from quire.options.reasoning import ReasoningOptions
from quire.options.server import RpcSecurityOptions
from tests.support.fake_engine import FakeOptions
from tests.support.fake_pooling import EMBEDDER, embedding
from tests.support.gateway_stack import GatewayStack, running_gateway
from tests.support.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

SHORT = pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=[65]), sampling_params=pb.SamplingParams(max_tokens=1))


class Service:
    """The service, and the stack behind it."""

    def __init__(self, stack: GatewayStack, channel: grpc.aio.Channel, calls: Calls) -> None:
        self.stack = stack
        self.calls = calls
        self.stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)

    async def generate(self, prompt: Any = (65,), *, stream: bool = False, **sampling: Any) -> list[Any]:
        """The chunks and completions of an answer. The fake engine continues 65 with 65, 72, 79, ..."""
        request = pb.GenerateRequest(
            request_id="r1", tokenized=pb.TokenizedInput(input_ids=prompt), stream=stream,
            sampling_params=pb.SamplingParams(**{"max_tokens": 3, "temperature": 0} | sampling),
        )  # fmt: skip
        return [getattr(each, each.WhichOneof("response")) async for each in self.stub.Generate(request)]

    async def refused(self, request: pb.GenerateRequest, code: grpc.StatusCode, *parts: str) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in self.stub.Generate(request, timeout=WAIT_SECONDS):
                pass
        assert caught.value.code() is code
        for part in parts:
            assert part in (caught.value.details() or "")


@contextlib.asynccontextmanager
async def serving(folder: Path, engine: FakeOptions | None = None, **options: Any) -> AsyncIterator[Service]:
    async with running_gateway(folder, engine, **options) as stack:
        calls = Calls(create_app(stack.context), stack.context)
        server = make_grpc_server(calls, stack.context, 0)
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            yield Service(stack, channel, calls)
        await server.server.stop(None)
        assert stack.context.statistics.num_live == 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(tokenizer_folder: Path) -> AsyncIterator[Service]:
    async with serving(tokenizer_folder) as service:
        yield service


async def test_a_whole_answer(service: Service) -> None:
    (complete,) = await service.generate(logprobs=1)
    assert complete.output_ids == [65, 72, 79]
    assert (complete.finish_reason, complete.prompt_tokens, complete.completion_tokens) == ("length", 1, 3)
    assert complete.output_logprobs.token_ids == [65, 72, 79]
    assert all(len(top.token_ids) == 1 for top in complete.output_logprobs.top_logprobs)
    assert not complete.HasField("input_logprobs")


async def test_a_stream_tells_each_token_once(service: Service) -> None:
    *chunks, complete = await service.generate(stream=True, max_tokens=20, logprobs=0)
    assert len(chunks) > 1
    assert [token for chunk in chunks for token in chunk.token_ids] == [65 + 7 * place for place in range(20)]
    assert [token for chunk in chunks for token in chunk.output_logprobs.token_ids] == [
        65 + 7 * place for place in range(20)
    ]
    assert not chunks[0].output_logprobs.top_logprobs
    assert (complete.output_ids, complete.completion_tokens, complete.finish_reason) == ([], 20, "length")


async def test_choices_have_their_numbers(service: Service) -> None:
    answers = await service.generate(n=2, temperature=1)
    assert {answer.index: list(answer.output_ids) for answer in answers} == {0: [65, 72, 79], 1: [96, 103, 110]}
    *chunks, first, second = await service.generate(n=2, stream=True, temperature=1)
    assert {chunk.index for chunk in chunks} == {first.index, second.index} == {0, 1}


async def test_what_ended_a_choice(service: Service) -> None:
    (by_string,) = await service.generate((32,), stop=["O"], max_tokens=10)
    assert (by_string.finish_reason, by_string.matched_stop_str) == ("stop", "O")
    assert by_string.output_ids == [32, 39, 46]
    assert not service.stack.context.pipeline.texts.num_open


async def test_a_text_is_tokenized(service: Service) -> None:
    request = pb.GenerateRequest(text="A", sampling_params=pb.SamplingParams(max_tokens=1, temperature=0))
    (answer,) = [each async for each in service.stub.Generate(request)]
    assert answer.complete.prompt_tokens == 1


async def test_sampling_parameters_reach_the_engine(service: Service) -> None:
    before = len(service.stack.engine.record.started)
    await service.generate(
        top_p=0.5, top_k=4, min_p=0.25, frequency_penalty=0.5, presence_penalty=-0.5, repetition_penalty=1.5, seed=7,
        min_tokens=2, stop_token_ids=[5], ignore_eos=True, logit_bias={3: -2.0}, temperature=0.75,
    )  # fmt: skip
    sampling = service.stack.engine.record.started[before].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.75, 0.5, 4, 0.25)
    assert (sampling.frequency_penalty, sampling.presence_penalty, sampling.repetition_penalty) == (0.5, -0.5, 1.5)
    assert (sampling.seed, sampling.min_tokens, sampling.ignore_eos) == (7, 2, True)
    assert (list(sampling.stop_token_ids), dict(sampling.logit_bias)) == ([5], {3: -2.0})


async def test_neutral_values_are_not_the_models_defaults(service: Service) -> None:
    before = len(service.stack.engine.record.started)
    request = pb.GenerateRequest(
        tokenized=pb.TokenizedInput(input_ids=[65]), sampling_params=pb.SamplingParams(max_tokens=1)
    )
    assert [each async for each in service.stub.Generate(request)]
    sampling = service.stack.engine.record.started[before].sampling
    # Neutral values are left unset between the services.
    assert not {field.name for field, _ in sampling.ListFields()} & {"temperature", "top_p", "repetition_penalty"}


INVALID = {
    "input": pb.GenerateRequest(),
    "temperature": pb.GenerateRequest(text="A", sampling_params=pb.SamplingParams(temperature=-1)),
    "data_parallel_rank": pb.GenerateRequest(text="A", data_parallel_rank=1),
    "mm_inputs": pb.GenerateRequest(text="A", mm_inputs=pb.MultimodalInputs()),
    "kv_transfer_params_json": pb.GenerateRequest(text="A", kv_transfer_params_json="[]"),
    "kv_transfer_params is": pb.GenerateRequest(text="A", kv_transfer_params=pb.KvTransferParams()),
    "json_schema": pb.GenerateRequest(text="A", sampling_params=pb.SamplingParams(json_schema="{")),
    "choice": pb.GenerateRequest(text="A", sampling_params=pb.SamplingParams(choice=pb.ChoiceConstraint())),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID)
async def test_what_is_invalid_is_named(service: Service, name: str) -> None:
    await service.refused(INVALID[name], grpc.StatusCode.INVALID_ARGUMENT, name)


async def test_a_constraint_reaches_the_engine(service: Service) -> None:
    before = len(service.stack.engine.record.started)
    await service.generate(json_schema='{"type": "object"}')
    await service.generate(regex="[A-Z]+")
    first, second = service.stack.engine.record.started[before:]
    assert first.HasField("constraint")
    assert second.HasField("constraint")


async def test_abort_and_cancel(service: Service) -> None:
    request = pb.GenerateRequest(
        request_id="long", tokenized=pb.TokenizedInput(input_ids=[65]), stream=True,
        sampling_params=pb.SamplingParams(temperature=0, ignore_eos=True),
    )  # fmt: skip
    call = service.stub.Generate(request)
    await call.read()
    await service.stub.Abort(pb.AbortRequest(request_ids=["long", "unknown"]))
    while (response := await call.read()) is not grpc.aio.EOF:
        last = response
    assert last.complete.finish_reason == "abort"

    call = service.stub.Generate(request)
    await call.read()
    assert service.stack.context.statistics.num_live == 1
    call.cancel()
    await eventually(lambda: service.stack.context.statistics.num_live == 0, "a cancelled call goes on")


async def test_the_memory_is_short(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service.stack.context.memory, "is_short", True)
    await service.refused(SHORT, grpc.StatusCode.UNAVAILABLE, "short of memory")
    await service.stub.Abort(pb.AbortRequest(request_ids=["unknown"]))


async def test_a_drain_waits_for_what_runs_and_takes_nothing_new(
    tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for a request that has not reached a worker yet."""
    begun, goes_on = asyncio.Event(), asyncio.Event()
    prepare = completions.prepare

    async def slowly(*given: Any, **named: Any) -> Any:
        begun.set()
        await goes_on.wait()
        return await prepare(*given, **named)

    monkeypatch.setattr(completions, "prepare", slowly)
    async with serving(tokenizer_folder) as service:
        answer = asyncio.create_task(service.generate())
        await begun.wait()
        draining = asyncio.create_task(service.calls.drain())
        await asyncio.sleep(0)
        await service.refused(SHORT, grpc.StatusCode.UNAVAILABLE, "stopping")
        assert not draining.done()
        goes_on.set()
        await draining
        assert (await answer)[0].output_ids == [65, 72, 79]


async def test_facts(service: Service) -> None:
    assert (await service.stub.HealthCheck(pb.HealthCheckRequest())).healthy
    model = await service.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert (model.served_model_name, model.is_generation, model.tokenizer_path) == ("fake", True, "tiny")
    assert (model.vocab_size, model.model_type) == (50000, "fake_type")
    server = await service.stub.GetServerInfo(pb.GetServerInfoRequest())
    assert (server.server_type, server.data_parallel_size, server.block_size) == ("vllm-grpc", 1, 16)
    assert server.constrained_decoding_start == "first_token"
    loads = await service.stub.GetLoads(pb.GetLoadsRequest())
    assert [load.max_total_num_tokens for load in loads.loads] == [16000]


async def test_the_tokenizer_comes_as_an_archive(service: Service, tokenizer_folder: Path) -> None:
    chunks = [chunk async for chunk in service.stub.GetTokenizer(common_pb2.GetTokenizerRequest())]
    data = b"".join(chunk.data for chunk in chunks)
    assert chunks[-1].sha256 == hashlib.sha256(data).hexdigest()
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert json.loads(archive.read("tokenizer.json")) == json.loads(
            (tokenizer_folder / "tokenizer.json").read_text()
        )
        assert "chat_template" in json.loads(archive.read("tokenizer_config.json"))


async def test_there_are_no_events(service: Service) -> None:
    call = service.stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest())
    assert await call.code() is grpc.StatusCode.UNIMPLEMENTED
    assert not [key for key, _ in await call.initial_metadata() if key == "x-request-id"]  # it has not begun


async def test_operators_commands_need_dev_mode(service: Service, tokenizer_folder: Path) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="--server-dev-mode"):
        await service.stub.FlushCache(common_pb2.FlushCacheRequest())
    with pytest.raises(grpc.aio.AioRpcError, match="--server-dev-mode"):
        await service.stub.StopProfile(common_pb2.StopProfileRequest())
    async with serving(tokenizer_folder, server_dev_mode=True) as open_service:
        with pytest.raises(grpc.aio.AioRpcError, match="timeout_s is -1"):
            await open_service.stub.FlushCache(common_pb2.FlushCacheRequest(timeout_s=-1))
        with pytest.raises(grpc.aio.AioRpcError, match="num_steps cannot be set here"):
            await open_service.stub.StartProfile(common_pb2.StartProfileRequest(num_steps=3))


async def test_keys_are_needed_where_the_server_has_some(tokenizer_folder: Path) -> None:
    reasoning = ReasoningOptions(reasoning_parser="qwen3")
    async with serving(tokenizer_folder, api_key=("secret",), reasoning=reasoning) as service:
        await service.refused(SHORT, grpc.StatusCode.UNAUTHENTICATED, "Authorization: Bearer")
        with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
            await service.stub.GetLoads(pb.GetLoadsRequest())
        assert (await service.stub.HealthCheck(pb.HealthCheckRequest())).healthy
        call = service.stub.Generate(SHORT, metadata=(("authorization", "Bearer secret"),))
        assert [each async for each in call]
        server = await service.stub.GetServerInfo(
            pb.GetServerInfoRequest(), metadata=(("authorization", "Bearer secret"),)
        )
        assert (server.engine_reasoning_parser, server.constrained_decoding_start) == ("qwen3", "after_reasoning")


async def test_embeddings(tokenizer_folder: Path) -> None:
    async with serving(tokenizer_folder, FakeOptions(pooling=EMBEDDER)) as service:
        request = pb.EmbedRequest(request_id="e1", tokenized=pb.TokenizedInput(input_ids=[1, 2]))
        answer = await service.stub.Embed(request)
        assert list(answer.embedding) == pytest.approx(embedding([1, 2]))
        assert (answer.prompt_tokens, answer.embedding_dim) == (2, 4)
        assert not (await service.stub.GetModelInfo(pb.GetModelInfoRequest())).is_generation
        with pytest.raises(grpc.aio.AioRpcError, match="set tokenized"):
            await service.stub.Embed(pb.EmbedRequest())


async def test_options_of_http_are_refused_beside_it() -> None:
    GatewayOptions(grpc=True, port=5, server_dev_mode=True).check()
    with pytest.raises(StartupError, match="leave out --root-path, --enable-scale-out"):
        GatewayOptions(grpc=True, root_path="/a", enable_scale_out=True).check()


async def test_another_server_is_told_where_the_blocks_are(tokenizer_folder: Path) -> None:
    engine = FakeOptions(step_seconds=0.001, kv_role="kv_both", kv_connector="GrpcConnector")
    security = RpcSecurityOptions(grpc_token="shared")
    async with serving(tokenizer_folder, engine, enable_kv_transfer_params=True, security=security) as service:
        request = pb.GenerateRequest(
            tokenized=pb.TokenizedInput(input_ids=[65]), kv_transfer_params_json='{"do_remote_decode": true}',
            sampling_params=pb.SamplingParams(max_tokens=1),
        )  # fmt: skip
        (prefilled,) = [each.complete async for each in service.stub.Generate(request)]
        told = json.loads(prefilled.kv_transfer_params_json)
        address = f"{told['remote_host']}:{told['remote_port']}"
        assert (told["do_remote_prefill"], address) == (True, service.stack.engine.address)
        request.kv_transfer_params_json = prefilled.kv_transfer_params_json
        (answer,) = [each.complete async for each in service.stub.Generate(request)]
        assert not answer.HasField("kv_transfer_params_json")
        assert service.stack.engine.record.started[-1].kv_source == address
