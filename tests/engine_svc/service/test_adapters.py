"""Adapters over real sockets, with the fake executor: loaded, requested, reported to routers, unloaded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client import generate_latest

from quire.block_hash import block_keys
from quire.errors import (
    DeadlineExceeded,
    FailedPrecondition,
    Internal,
    InvalidRequest,
    NotFound,
    QuireError,
    StartupError,
)
from quire.rpc.status import from_rpc_error
from quire.v1 import common_pb2, engine_pb2
from tests.support.adapter_folders import low_rank, write_adapter
from tests.support.engine_client import TIMEOUT, VOCABULARY, generate, generation, refusal, wait_free
from tests.support.engine_server import RunningEngine, running_engine
from tests.support.fake_adapters import FakeAdapters
from tests.support.fake_executor import FakeExecutor, expected_tokens
from tests.support.plans import sampling_plan

PROMPT = list(range(40))


def adapter_folder(folder: Path, seed: int = 0) -> str:
    return str(write_adapter(folder, low_rank({"q_proj": (8, 6)}, seed=seed)))


def options(root: Path, **more: Any) -> dict[str, Any]:
    return {"enable_lora": True, "allow_runtime_lora_updating": True, "allowed_lora_root": str(root)} | more


def fake_executor(num_slots: int = 1, num_places: int = 1, **fields: Any) -> FakeExecutor:
    adapters = FakeAdapters(num_slots, num_places, error=fields.pop("error", lambda folder: ""))
    return FakeExecutor(verify=True, adapters=adapters, **fields)


async def load(engine: RunningEngine, name: str, path: str, **fields: Any) -> common_pb2.AdapterInfo:
    request = engine_pb2.LoadAdapterRequest(name=name, path=path, **fields)
    adapter: common_pb2.AdapterInfo = (await engine.stub.LoadAdapter(request, timeout=TIMEOUT)).adapter
    return adapter


async def unload(engine: RunningEngine, name: str, wait_ms: int = 0) -> int:
    request = engine_pb2.UnloadAdapterRequest(name=name, wait_ms=wait_ms)
    left: int = (await engine.stub.UnloadAdapter(request, timeout=TIMEOUT)).live_requests
    return left


async def served(engine: RunningEngine) -> dict[str, common_pb2.AdapterInfo]:
    answer = await engine.stub.GetModelInfo(engine_pb2.GetModelInfoRequest(), timeout=TIMEOUT)
    return {adapter.name: adapter for adapter in answer.model_info.adapters}


async def load_now(engine: RunningEngine) -> common_pb2.EngineLoad:
    answer = await engine.stub.GetLoad(engine_pb2.GetLoadRequest(), timeout=TIMEOUT)
    told: common_pb2.EngineLoad = answer.load
    return told


async def tokens(engine: RunningEngine, model: str, **fields: Any) -> list[int]:
    deltas = await generate(engine, generation(PROMPT, model=model, **({"max_tokens": 12} | fields)))
    return [token for delta in deltas for token in delta.token_ids]


def wanted(folder: str, count: int = 12) -> list[int]:
    return expected_tokens(PROMPT, count, VOCABULARY, sampling_plan(temperature=0.0), folder)


async def refused(call: Any) -> QuireError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


async def test_adapters_of_the_options_are_asked_for_by_name(tmp_path: Path) -> None:
    a, b = adapter_folder(tmp_path / "a"), adapter_folder(tmp_path / "b", seed=1)
    modules = (f"a={a}", f'{{"name": "b", "path": "{b}", "base_model_name": "told"}}')
    async with running_engine(fake_executor(), enable_lora=True, lora_modules=modules) as engine:
        told = await served(engine)
        assert [(each.name, each.path, each.rank, each.base_model_name) for each in told.values()] == [
            ("a", a, 4, ""), ("b", b, 4, "told"),
        ]  # fmt: skip
        for model, folder in (("a", a), ("b", b), ("fake", ""), ("", ""), ("a", a)):
            assert await tokens(engine, model) == wanted(folder)
        error = await refusal(engine, generation(PROMPT, model="c"))
        assert isinstance(error, NotFound)
        assert error.reason == "MODEL_NOT_FOUND"
        error = await refused(load(engine, "c", a))
        assert isinstance(error, FailedPrecondition)
        assert "--allow-runtime-lora-updating" in error.message


async def test_an_adapter_for_images_is_told_as_such(tmp_path: Path) -> None:
    folder = adapter_folder(tmp_path / "a")
    more = {"default_mm_loras": {"image": folder}, "lora_modules": (f"a={folder}",)}
    async with running_engine(fake_executor(), **options(tmp_path, **more)) as engine:
        assert {name: each.is_default for name, each in (await served(engine)).items()} == {"a": False, "image": True}
        assert (await load(engine, "image", "a", in_place=True)).is_default
        assert not (await load(engine, "audio", "a")).is_default
        assert await tokens(engine, "image") == wanted(folder)


async def test_adapters_come_and_go_while_the_engine_runs(tmp_path: Path) -> None:
    a, b = adapter_folder(tmp_path / "a"), adapter_folder(tmp_path / "b", seed=1)
    async with running_engine(fake_executor(), **options(tmp_path)) as engine:
        versions = [(await load_now(engine)).adapters_version]
        first = await load(engine, "x", "a")
        assert (first.name, first.path, len(first.revision)) == ("x", "a", 64)
        assert await load(engine, "x", "a") == first  # a second time, which changes nothing
        versions.append((await load_now(engine)).adapters_version)
        assert await tokens(engine, "x") == wanted(a)
        error = await refused(load(engine, "x", b))
        assert isinstance(error, InvalidRequest)
        assert error.parameter == "name"
        second = await load(engine, "x", b, in_place=True)
        assert second.revision != first.revision
        assert await served(engine) == {"x": second}
        versions.append((await load_now(engine)).adapters_version)
        assert await tokens(engine, "x") == wanted(b)
        assert await unload(engine, "x", 1000) == 0
        versions.append((await load_now(engine)).adapters_version)
        assert sorted(set(versions)) == versions
        assert isinstance(await refusal(engine, generation(PROMPT, model="x")), NotFound)
        assert isinstance(await refused(unload(engine, "x")), NotFound)
        assert await served(engine) == {}
        assert await tokens(engine, "fake") == wanted("")


async def test_unloading_waits_for_the_last_request(tmp_path: Path) -> None:
    a, b = adapter_folder(tmp_path / "a"), adapter_folder(tmp_path / "b", seed=1)
    executor = fake_executor(step_seconds=0.002)
    async with running_engine(executor, **options(tmp_path)) as engine:
        await load(engine, "x", a)
        call = engine.stub.Generate(
            engine_pb2.EngineServiceGenerateRequest(generation=generation(PROMPT, model="x", max_tokens=500)),
            timeout=TIMEOUT,
        )
        brought = list((await call.read()).delta.token_ids)
        assert await unload(engine, "x") == 1
        assert isinstance(await refusal(engine, generation(PROMPT, model="x")), NotFound)
        await load(engine, "x", b)  # the name is free again
        waiting = asyncio.create_task(unload(engine, "x", 20_000))
        assert await waiting == 0
        while (response := await call.read()) is not grpc.aio.EOF:
            brought += response.delta.token_ids
        assert brought == wanted(a, 500)


async def test_a_wait_for_the_last_request_ends_with_it(tmp_path: Path) -> None:
    a = adapter_folder(tmp_path / "a")
    async with running_engine(fake_executor(step_seconds=0.002), **options(tmp_path)) as engine:
        await load(engine, "x", a)
        running = asyncio.create_task(tokens(engine, "x", max_tokens=500))
        while not (await load_now(engine)).running_sequences:
            await asyncio.sleep(0.01)
        assert await unload(engine, "x", 20_000) == 0
        assert await running == wanted(a, 500)
        error = await refused(unload(engine, "y", 600_001))
        assert isinstance(error, InvalidRequest)
        assert error.parameter == "wait_ms"


async def test_a_replaced_adapter_serves_those_that_began_with_it(tmp_path: Path) -> None:
    a, b = adapter_folder(tmp_path / "a"), adapter_folder(tmp_path / "b", seed=1)
    executor = fake_executor(2, 2, step_seconds=0.002)
    async with running_engine(executor, **options(tmp_path, max_loras=2)) as engine:
        await load(engine, "x", a)
        old = asyncio.create_task(tokens(engine, "x", max_tokens=500))
        while not (await load_now(engine)).running_sequences:
            await asyncio.sleep(0.01)
        await load(engine, "x", b, in_place=True)
        assert await tokens(engine, "x", max_tokens=5) == wanted(b, 5)
        assert await old == wanted(a, 500)
        await wait_free(engine)


async def test_a_broken_adapter_fails_its_requests_alone(tmp_path: Path) -> None:
    a, b = adapter_folder(tmp_path / "a"), adapter_folder(tmp_path / "b", seed=1)
    damaged = {b}
    executor = fake_executor(error=lambda folder: "it is damaged" if folder in damaged else "")
    async with running_engine(executor, **options(tmp_path)) as engine:
        await load(engine, "a", a)
        await load(engine, "b", b)
        error, brought = await asyncio.gather(refusal(engine, generation(PROMPT, model="b", n=2)), tokens(engine, "a"))
        assert isinstance(error, Internal)
        assert (error.reason, error.message) == ("REQUEST_FAULT", "The adapter b cannot be read: it is damaged.")
        assert brought == wanted(a)
        damaged.clear()
        assert await tokens(engine, "b") == wanted(b)  # it is read a second time
        adapter_folder(tmp_path / "a", seed=2)
        error = await refusal(engine, generation(PROMPT, model="a"))
        assert "its files have changed since it was loaded" in error.message
        await load(engine, "a", a, in_place=True)
        assert await tokens(engine, "a") == wanted(a)


async def test_the_cache_keeps_revisions_apart(tmp_path: Path) -> None:
    a, b = adapter_folder(tmp_path / "a"), adapter_folder(tmp_path / "b", seed=1)
    async with running_engine(fake_executor(), **options(tmp_path)) as engine:
        revisions = [(await load(engine, name, path)).revision for name, path in (("a", a), ("again", a), ("b", b))]
        assert revisions[0] == revisions[1]
        cached = []
        for model in ("a", "again", "b", "fake", "b"):
            deltas = await generate(engine, generation(PROMPT, model=model, max_tokens=1))
            cached.append(deltas[-1].usage.cached_prompt_tokens)
        assert cached == [0, 32, 0, 0, 32]
        call = engine.stub.SubscribeKvEvents(engine_pb2.SubscribeKvEventsRequest(), timeout=TIMEOUT)
        keys = {key for event in (await call.read()).events for key in event.stored.block_keys}
        assert keys == {
            key for adapter in ("", revisions[0], revisions[2]) for key in block_keys(PROMPT, 16, adapter=adapter)
        }
        call.cancel()


async def test_routers_and_metrics_hear_what_runs_and_what_waits(tmp_path: Path) -> None:
    a, b = adapter_folder(tmp_path / "a"), adapter_folder(tmp_path / "b", seed=1)
    async with running_engine(fake_executor(step_seconds=0.005), **options(tmp_path)) as engine:
        info = (await engine.stub.GetModelInfo(engine_pb2.GetModelInfoRequest(), timeout=TIMEOUT)).model_info
        assert info.max_loras == 1
        await load(engine, "a", a)
        await load(engine, "b", b)
        first = asyncio.create_task(tokens(engine, "a", max_tokens=1500))
        while not (told := await load_now(engine)).running_sequences:
            await asyncio.sleep(0.01)
        second = asyncio.create_task(tokens(engine, "b", n=2))
        while not (told := await load_now(engine)).waiting_requests:
            await asyncio.sleep(0.01)
        loads = [(each.name, each.on_device, each.running_sequences, each.waiting_sequences) for each in told.adapters]
        assert loads == [("a", True, 1, 0), ("b", False, 0, 1)]
        lines = generate_latest(engine.registry).decode().splitlines()
        labels = 'max_lora="1",running_lora_adapters="a",waiting_lora_adapters="b"'
        value = next(line for line in lines if line.startswith(f"quire_engine_lora_requests_info{{{labels}}}"))
        assert float(value.split()[-1]) > 1e9
        first.cancel()
        assert len(await second) == 24
        await wait_free(engine)
        (left,) = (await load_now(engine)).adapters
        assert (left.name, left.on_device, left.running_sequences) == ("b", True, 0)


async def test_a_request_that_waits_for_a_slot_keeps_its_deadline(tmp_path: Path) -> None:
    a, b = adapter_folder(tmp_path / "a"), adapter_folder(tmp_path / "b", seed=1)
    async with running_engine(fake_executor(step_seconds=0.005), **options(tmp_path)) as engine:
        await load(engine, "a", a)
        await load(engine, "b", b)
        first = asyncio.create_task(tokens(engine, "a", max_tokens=1500))
        while not (await load_now(engine)).running_sequences:
            await asyncio.sleep(0.01)
        error = await refusal(engine, generation(PROMPT, model="b", timeout_ms=50))
        assert isinstance(error, DeadlineExceeded)
        first.cancel()


async def test_a_worker_without_adapters_says_so(tmp_path: Path) -> None:
    async with running_engine() as engine:
        for call in (load(engine, "a", adapter_folder(tmp_path)), unload(engine, "a")):
            error = await refused(call)
            assert isinstance(error, FailedPrecondition)
            assert "--enable-lora" in error.message
        assert (await load_now(engine)).adapters_version == 0
        assert b"lora" not in generate_latest(engine.registry)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"lora_modules": ("a=/nowhere",)}, "--lora-modules has no effect without --enable-lora"),
        ({"enable_lora": True, "lora_modules": ("a=/nowhere",)}, "--lora-modules a: /nowhere is not a folder"),
        ({"enable_lora": True, "lora_modules": ("fake=/nowhere",)}, "fake is the model's own name"),
    ],
)
async def test_what_cannot_be_served_ends_the_start(given: dict[str, Any], words: str) -> None:
    with pytest.raises(StartupError, match=words):
        async with running_engine(fake_executor(), **given):
            pass


async def test_a_model_that_takes_no_adapters_says_so_at_the_start() -> None:
    with pytest.raises(StartupError, match="FakeForCausalLM does not support adapters"):
        async with running_engine(enable_lora=True):
            pass
