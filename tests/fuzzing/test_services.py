"""Valid protobuf messages with odd values: each service refuses them, and goes on serving others."""

from __future__ import annotations

import contextlib
from pathlib import Path

import grpc
import pytest

from quire.options.model import ModelOptions
from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions
from quire.rpc.channel import open_channel
from quire.structured.base import Constraint
from quire.v1 import admin_pb2, admin_pb2_grpc, common_pb2, engine_pb2, router_pb2, tokenizer_pb2, tokenizer_pb2_grpc
from router.app import Router
from tests.router.conftest import nothing_is_left
from tests.support.adapter_folders import low_rank, write_adapter
from tests.support.engine_client import generated, generation, wait_free
from tests.support.engine_server import running_engine
from tests.support.fake_adapters import FakeAdapters
from tests.support.fake_executor import FakeExecutor
from tests.support.gateway_stack import SECURITY, running_tokenizer
from tests.support.grammars import FOLDER, PERSON, VOCABULARY_SIZE, following
from tests.support.hostile_calls import Method, call_oddly
from tests.support.router_client import connect

pytestmark = pytest.mark.slow

MODEL = ModelOptions(model=str(FOLDER), served_model_name=("fake",))
PROMPT = list(range(33))
SAMPLING = common_pb2.SamplingParams(
    n=2, max_tokens=20, min_tokens=2, temperature=0.9, top_p=0.9, top_k=5, min_p=0.05, repetition_penalty=1.1,
    presence_penalty=0.1, frequency_penalty=0.2, seed=4, stop_token_ids=[3], logit_bias={4: 2.0, 5: -3.0}, logprobs=2,
    prompt_logprobs=1, bad_words=[common_pb2.TokenIds(token_ids=[1, 2])], allowed_token_ids=range(100),
    logprob_token_ids=[5, 6],
    repetition_detection=common_pb2.RepetitionDetection(max_pattern_size=4, min_pattern_size=1, min_count=3),
)  # fmt: skip
MARKS = common_pb2.ReasoningMarks(
    start_token_ids=[7], end_token_ids=[9, 10], is_open=True, blank_token_ids=[4], closing_token_ids=[9, 10]
)
IMAGE = common_pb2.Image(
    offset=2, num_tokens=4, pixel_scale=[1, 1, 1], pixel_shift=[0, 0, 0],
    inputs=[common_pb2.ImageInput(name="pixel_values", dtype="float32", shape=[2, 3], data=bytes(24))],
)  # fmt: skip
POOL = common_pb2.PoolRequest(
    inputs=[common_pb2.PoolingInput(token_ids=[1, 2, 3], token_type_ids=[0, 0, 1])], timeout_ms=3000, tenant_weight=1,
    parameters=common_pb2.PoolingParameters(
        task=common_pb2.POOLING_TASK_EMBED, dimensions=8, normalize=True
    ),
)  # fmt: skip
MESSAGES = b"""[
    {"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
    {"role": "tool", "content": "x"}
]"""


def as_message(constraint: Constraint) -> common_pb2.Constraint:
    return common_pb2.Constraint(backend=constraint.backend, grammar=constraint.grammar, key=constraint.key)


def generations() -> list[common_pb2.Generation]:
    def short(**fields: object) -> common_pb2.Generation:
        sampling = common_pb2.SamplingParams(max_tokens=20, temperature=0)
        return common_pb2.Generation(**({"prompt_token_ids": [7] * 10, "sampling": sampling} | fields))

    progress = [common_pb2.ChoiceProgress(token_ids=[1, 2]), common_pb2.ChoiceProgress(token_ids=[4], finished=True)]
    return [
        short(
            request_id="a", prompt_token_ids=range(40), sampling=SAMPLING, prompt_block_keys=[1, 2],
            prompt_block_size=16, tenant="t", session_id="s", tenant_weight=1, timeout_ms=5000, cache_salt="x",
        ),
        short(sampling=common_pb2.SamplingParams(max_tokens=20, thinking_token_budget=5, reasoning=MARKS)),
        short(sampling=common_pb2.SamplingParams(max_tokens=10, temperature=0, n=2), progress=progress),
        short(constraint=as_message(following(PERSON))),
        short(prompt_embeds=common_pb2.PromptEmbeds(dtype="float32", hidden_size=4, data=bytes(64))),
        short(images=[IMAGE]),
        short(kv_source="127.0.0.1:1", remote_decode=True),
        short(model="adapter"),
    ]  # fmt: skip


def starts() -> list[dict[str, object]]:
    """Fields of a session's frames, each with a request that starts, one that stops, and one that is aborted."""
    return [
        {
            "starts": [engine_pb2.SessionStart(stream_id=number, generation=each, hands_over=number == 2)],
            "stops": [engine_pb2.SequenceStop(stream_id=number, num_output_tokens=2)],
            "abort_stream_ids": [number + 1],
        }
        for number, each in enumerate(generations())
    ]


def adapters(folder: str) -> list[Method]:
    return [
        Method("LoadAdapter", [engine_pb2.LoadAdapterRequest(name="adapter", path=folder)]),
        Method("UnloadAdapter", [engine_pb2.UnloadAdapterRequest(name="adapter")]),
    ]


def engine_methods(folder: str) -> list[Method]:
    block = engine_pb2.KvBlockName(block_hash=b"a" * 32, group=1)
    return [
        Method(
            "Generate", [engine_pb2.EngineServiceGenerateRequest(generation=each) for each in generations()],
            is_stream=True,
        ),
        Method("Session", [engine_pb2.EngineServiceSessionRequest(**each) for each in starts()], is_session=True),
        Method("Pool", [POOL]),
        Method("Abort", [engine_pb2.AbortRequest(request_ids=["a"])]),
        Method("SubscribeKvEvents", [engine_pb2.SubscribeKvEventsRequest(from_sequence=3, epoch="x")], is_stream=True),
        Method("PullKvBlocks", [engine_pb2.PullKvBlocksRequest(blocks=[block], num_ranks=1)], is_stream=True),
        Method("EncodeMedia", [engine_pb2.EncodeMediaRequest(image=IMAGE)], is_stream=True),
        *adapters(folder),
    ]  # fmt: skip


def router_methods(folder: str, address: str) -> list[Method]:
    weights = router_pb2.PlacementWeights(host_tier=1, interference=2, temperature=3)
    return [
        Method(
            "Generate", [router_pb2.RouterServiceGenerateRequest(generation=each) for each in generations()],
            is_stream=True,
        ),
        Method("Session", [router_pb2.RouterServiceSessionRequest(**each) for each in starts()], is_session=True),
        Method("Pool", [POOL]),
        Method("RegisterWorker", [router_pb2.RegisterWorkerRequest(address=address)]),
        Method("Heartbeat", [router_pb2.HeartbeatRequest(lease_id="x")]),
        Method("ExplainPlacement", [router_pb2.ExplainPlacementRequest(request_id="a", weights=weights)]),
        *adapters(folder),
    ]  # fmt: skip


def as_request(**command: object) -> admin_pb2.EngineAdminServiceAdministerRequest:
    return admin_pb2.EngineAdminServiceAdministerRequest(command=admin_pb2.AdminCommand(**command))


def commands(folder: Path) -> list[admin_pb2.EngineAdminServiceAdministerRequest]:
    trainer = {"master_address": "127.0.0.1", "master_port": 1, "first_rank": 1, "world_size": 2, "wait_ms": 5}
    new = {"model_path": str(folder), "weight_version": "v", "leaving": admin_pb2.LEAVING_KEEP, "wait_ms": 5}
    return [
        as_request(pause={"leaving": admin_pb2.LEAVING_WAIT, "wait_ms": 5}), as_request(resume={}),
        as_request(sleep={"level": 1, "leaving": admin_pb2.LEAVING_KEEP}), as_request(wake_up={"parts": ["weights"]}),
        as_request(wake_up={}), as_request(undrain={}), as_request(abort={"request_ids": ["a"]}),
        as_request(reset_prefix_cache={"preempts_running": True}), as_request(update_weights=new),
        as_request(join_trainer=trainer), as_request(name_weights={"weight_version": "v"}),
    ]  # fmt: skip


def tokenizer_methods() -> list[Method]:
    tokenizer = tokenizer_pb2
    truncation = tokenizer.Truncation(num_tokens=5, keeps_end=True)
    frames = [
        tokenizer.DetokenizeSessionRequest(
            opens=[tokenizer.DetokenizeOpen(
                stream_id=number, stop_strings=["ab", "c"], min_tokens=2, prompt_tail_token_ids=[70, 71],
                history_token_ids=[72, 200, 201], kept_special_tokens=["<s>"], reasoning=MARKS,
            )],
            tokens=[tokenizer.DetokenizeTokens(
                stream_id=number, token_ids=[65, 66, 230, 67], is_last=number % 2 == 0, lookup_token_ids=[1, 2]
            )],
            close_stream_ids=[number + 1],
        )
        for number in range(4)
    ]  # fmt: skip
    constraints: list[dict[str, object]] = [
        {"json_schema": b'{"type": "object", "properties": {"a": {"type": "string", "pattern": "a+"}}}'},
        {"regex": "a{2,3}"}, {"grammar": 'root ::= "a"'}, {"choices": tokenizer.TextChoices(texts=["a", "b"])},
    ]  # fmt: skip
    return [
        Method("Encode", [
            tokenizer.EncodeRequest(
                texts=["hello world", "b"], block_size=16, cache_salt="s", max_tokens=100, truncation=truncation
            ),
            tokenizer.EncodeRequest(texts=["hello"], suffix="x", adapter="a"),
        ]),
        Method("EncodePairs", [tokenizer.EncodePairsRequest(
            first_texts=["a"], second_texts=["b", "c"], max_tokens=100, max_first_tokens=3, max_second_tokens=4
        )]),
        Method("Decode", [tokenizer.DecodeRequest(
            token_ids=[65, 66, 200], return_token_bytes=True, return_token_strings=True
        )]),
        Method("RenderChat", [
            tokenizer.RenderChatRequest(
                messages_json=MESSAGES, tools_json=b"[]", block_size=16, max_tokens=1000, return_token_offsets=True,
                template_kwargs_json=b'{"enable_thinking": true}', default_reasoning_effort="low",
            ),
            tokenizer.RenderChatRequest(
                messages_json=MESSAGES, images=[b"\x89PNG"], videos=[tokenizer.Video(files=[b"a"])], audios=[b"RIFF"],
                image_embeds=[tokenizer.ImageEmbeds(index=0, tensors={"image_embeds": b"x"})],
            ),
        ]),
        Method("DetokenizeSession", frames, is_session=True),
        Method("CompileConstraint", [tokenizer.CompileConstraintRequest(**each) for each in constraints]),
        Method("SplitAudio", [tokenizer.SplitAudioRequest(file=b"RIFF")], is_stream=True),
    ]  # fmt: skip


def executor() -> FakeExecutor:
    return FakeExecutor(VOCABULARY_SIZE, verify=True, adapters=FakeAdapters(1, 1, error=lambda folder: ""))


def options(folder: Path) -> dict[str, object]:
    write_adapter(folder / "adapter", low_rank({"q_proj": (8, 6)}))
    return {
        "enable_lora": True, "allow_runtime_lora_updating": True, "allowed_lora_root": str(folder),
        "enable_prompt_embeds": True, "max_waiting_requests": 100_000,
    }  # fmt: skip


async def test_an_engine(tmp_path: Path) -> None:
    async with running_engine(executor(), MODEL, **options(tmp_path)) as engine:
        statuses = await call_oddly(
            engine.stub,
            engine_methods("adapter"),
            lambda: generated(engine, generation(PROMPT, max_tokens=20, ignore_eos=True)),
        )
        assert len(statuses) > 5
        await wait_free(engine)


async def test_an_engines_administration(tmp_path: Path) -> None:
    async with running_engine(executor(), MODEL, enable_sleep_mode=True, **options(tmp_path)) as engine:
        stub = admin_pb2_grpc.EngineAdminServiceStub(engine.channel)

        async def block_size() -> list[int]:
            answer = await engine.stub.GetModelInfo(engine_pb2.GetModelInfoRequest(), timeout=60)
            return [answer.model_info.block_size]

        statuses = await call_oddly(stub, [Method("Administer", commands(tmp_path))], block_size)
        assert statuses["Administer OK"] and statuses["Administer INVALID_ARGUMENT"]
        for command in ("wake_up", "resume", "undrain"):
            with contextlib.suppress(grpc.aio.AioRpcError):  # not all of them have to undo something
                await stub.Administer(as_request(**{command: {}}), timeout=60)
        assert len(await generated(engine, generation(PROMPT, max_tokens=20, ignore_eos=True))) == 20


async def test_a_router(tmp_path: Path) -> None:
    async with running_engine(executor(), MODEL, **options(tmp_path)) as engine:
        router = Router(RouterOptions(workers=(engine.address,)), GrpcServerOptions(), SECURITY)
        await router.start()
        async with connect(router.server.port) as client:
            await client.wait_ready(engine.address)
            statuses = await call_oddly(
                client.stub,
                router_methods("adapter", engine.address),
                lambda: client.generate(generation(PROMPT, max_tokens=20, ignore_eos=True)),
            )
            assert len(statuses) > 5
            await nothing_is_left(router)
        await router.close()
        await wait_free(engine)


async def test_a_tokenizer_service(tmp_path: Path) -> None:
    async with (
        running_tokenizer(tmp_path) as tokenizer,
        open_channel(f"127.0.0.1:{tokenizer.port}", SECURITY) as channel,
    ):
        stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)

        async def encoded() -> list[int]:
            answer = await stub.Encode(tokenizer_pb2.EncodeRequest(texts=["I am here."]), timeout=60)
            return list(answer.sequences[0].token_ids)

        statuses = await call_oddly(stub, tokenizer_methods(), encoded)
        assert len(statuses) > 5
        assert not tokenizer.num_streams
