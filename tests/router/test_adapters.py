"""Adapters of a fleet: on all workers of a model or on none, and on workers that join later."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from quire.errors import FailedPrecondition, InvalidRequest, NotFound
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.rpc.status import from_rpc_error
from quire.v1 import common_pb2, engine_pb2, router_pb2
from tests.router.conftest import Running, StartEngine, StartRouter
from tests.support.fake_engine import FakeEngine, FakeOptions
from tests.support.router_client import generation
from tests.support.waiting import WAIT_SECONDS, eventually

BROKEN = ("/broken",)


async def load(running: Running, name: str = "a", path: str = "/a", base: str = "") -> common_pb2.AdapterInfo:
    request = engine_pb2.LoadAdapterRequest(name=name, path=path, base_model_name=base)
    try:
        answer = await running.client.stub.LoadAdapter(request, timeout=WAIT_SECONDS)
    except Exception as error:
        raise from_rpc_error(error) from error
    return answer.adapter


async def unload(running: Running, name: str = "a") -> int:
    try:
        answer = await running.client.stub.UnloadAdapter(
            engine_pb2.UnloadAdapterRequest(name=name), timeout=WAIT_SECONDS
        )
    except Exception as error:
        raise from_rpc_error(error) from error
    return int(answer.live_requests)


async def told(running: Running) -> list[list[str]]:
    """Names of the adapters that the router lists for each worker."""
    answer = await running.client.stub.ListWorkers(router_pb2.ListWorkersRequest(), timeout=WAIT_SECONDS)
    return [[adapter.name for adapter in worker.model_info.adapters] for worker in answer.workers]


async def test_on_all_workers_until_it_is_taken_away(start_engine: StartEngine, start_router: StartRouter) -> None:
    engines = [await start_engine(max_loras=2) for _ in range(3)]
    running = await start_router(*(engine.address for engine in engines))
    adapter = await load(running)
    assert (adapter.name, adapter.path) == ("a", "/a")
    assert [list(engine.adapters) for engine in engines] == [["a"]] * 3
    async with running.client.session() as session:
        output = await session.start(1, generation([1] * 40, 8, model="a"))
        await output.wait_ended()
        assert sum(len(engine.record.started) for engine in engines) == 1
        await eventually(lambda: not any(engine.live for engine in engines), "a request runs on")
        assert await unload(running) == 0
        assert not any(engine.adapters for engine in engines)
        refused = await (await session.start(2, generation([1] * 40, 8, model="a"))).wait_ended()
        assert refused.error is not None
        assert "'a'" in refused.error.message
    with pytest.raises(NotFound, match="'a'"):
        await unload(running)


async def test_one_that_cannot_takes_it_from_all(start_engine: StartEngine, start_router: StartRouter) -> None:
    well, broken = await start_engine(max_loras=1), await start_engine(max_loras=1, broken_folders=BROKEN)
    running = await start_router(well.address, broken.address)
    with pytest.raises(InvalidRequest, match=f"{broken.address}: /broken is broken"):
        await load(running, path="/broken")
    assert not well.adapters
    await load(running)
    with pytest.raises(InvalidRequest):
        await load(running, path="/broken")
    assert [list(engine.adapters) for engine in (well, broken)] == [["a"], ["a"]]  # the earlier adapter is kept


@pytest.mark.parametrize("status", [{"is_paused": True}, {"is_draining": True}, {"sleep_level": 1}])
async def test_one_that_an_operator_holds_has_the_same_as_the_others_when_it_goes_on(
    start_engine: StartEngine, start_router: StartRouter, status: dict[str, Any]
) -> None:
    held, other = await start_engine(max_loras=1), await start_engine(max_loras=1)
    running = await start_router(held.address, other.address)
    await load(running)
    held.extra_load.status.CopyFrom(common_pb2.EngineStatus(**status))
    await eventually(lambda: running.router.registry.num_ready == 1, "the router does not know")
    request = engine_pb2.LoadAdapterRequest(name="a", path="/new", in_place=True)
    await running.client.stub.LoadAdapter(request, timeout=WAIT_SECONDS)
    await load(running, "b", "/b")
    assert {name: adapter.path for name, adapter in held.adapters.items()} == {"a": "/new", "b": "/b"}
    assert held.adapters == other.adapters


async def test_a_fleet_without_adapters_says_so(start_engine: StartEngine, start_router: StartRouter) -> None:
    running = await start_router((await start_engine()).address)
    with pytest.raises(FailedPrecondition, match="--enable-lora"):
        await load(running)


async def test_of_several_models_one_is_named(start_engine: StartEngine, start_router: StartRouter) -> None:
    engines = [await start_engine(max_loras=1, models=(name,)) for name in ("one", "two")]
    running = await start_router(*(engine.address for engine in engines))
    with pytest.raises(InvalidRequest, match="one, two"):
        await load(running)
    await load(running, base="two")
    assert [list(engine.adapters) for engine in engines] == [[], ["a"]]


async def test_a_name_that_stands_for_something_else_is_refused(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """Requests by that name would reach the other target, or sometimes one and sometimes the other."""
    engines = [await start_engine(max_loras=1, models=(name, f"{name}-large")) for name in ("one", "two")]
    running = await start_router(*(engine.address for engine in engines), model_alias=("newest=two",))
    await load(running, base="one")
    for name in ("two", "two-large", "newest"):
        with pytest.raises(InvalidRequest, match=rf"^{name} is (a name of the model two|an alias)") as refused:
            await load(running, name, base="one")
        assert refused.value.parameter == "name"
    with pytest.raises(InvalidRequest, match="a is a name of the model one"):
        await load(running, base="two")
    assert [list(engine.adapters) for engine in engines] == [["a"], []]


async def test_an_adapter_that_an_alias_hides_is_told_of(
    start_engine: StartEngine, start_router: StartRouter, caplog: pytest.LogCaptureFixture
) -> None:
    engine = await start_engine(max_loras=1)
    engine.adapters = adapters("a", "newest")
    await start_router(engine.address, model_alias=("newest=fake",))
    await eventually(lambda: f"{engine.address} serves an adapter named newest, which no request" in caplog.text)
    assert "named a," not in caplog.text


async def test_a_worker_that_joins_gets_what_the_others_have(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    first = await start_engine(max_loras=2)
    running = await start_router(first.address)
    for name in ("a", "b"):
        await load(running, name, f"/{name}")
    second, other = await start_engine(max_loras=2), await start_engine(max_loras=2, models=("other",))
    without = await start_engine()
    running.router.registry.announce("test", [second.address, other.address, without.address])
    await eventually(lambda: set(second.adapters) == {"a", "b"}, "the new worker has no adapters")
    await eventually(
        lambda: len([worker for worker in running.router.registry.workers if worker.ready]) == 4, "not all are ready"
    )
    assert not other.adapters
    assert not without.adapters


async def test_what_is_unloaded_while_it_is_loaded_is_on_no_worker(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    slow, quick = await start_engine(max_loras=1), await start_engine(max_loras=1)
    running = await start_router(slow.address, quick.address)
    slow.may_load.clear()
    loading = asyncio.create_task(load(running))
    await eventually(lambda: slow.num_loads == 1 and "a" in quick.adapters, "it is not loaded")
    (worker,) = [each for each in running.router.registry.workers if each.address == quick.address]
    await eventually(lambda: worker.serves("a"), "the router does not know")
    unloading = asyncio.create_task(unload(running))
    await asyncio.sleep(0.1)  # it has reached the router
    slow.may_load.set()
    await loading
    assert await unloading == 0
    assert not slow.adapters and not quick.adapters


@pytest.mark.parametrize("in_place", [False, True])
async def test_a_worker_that_joins_while_an_adapter_is_loaded_has_it_too(
    start_engine: StartEngine, start_router: StartRouter, in_place: bool
) -> None:
    first, second = await start_engine(max_loras=2), await start_engine(max_loras=2)
    running = await start_router(first.address)
    if in_place:
        await load(running)
    first.may_load.clear()
    request = engine_pb2.LoadAdapterRequest(name="a", path="/new", in_place=in_place)
    loading = running.client.stub.LoadAdapter(request, timeout=WAIT_SECONDS)
    await eventually(lambda: first.num_loads == 1 + in_place, "it is not loaded")
    running.router.registry.announce("test", [second.address])
    await eventually(lambda: running.router.registry.num_ready == 2, "it does not join")
    await eventually(lambda: len(second.adapters) == in_place, "it has not what the other has")
    first.may_load.set()
    await loading
    assert second.adapters["a"].path == first.adapters["a"].path == "/new"


async def test_a_worker_that_joins_keeps_nothing_that_is_unloaded_meanwhile(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """Adapters unloaded before or while the joining worker loads them do not stay on it."""
    first, second = await start_engine(max_loras=2), await start_engine(max_loras=2)
    running = await start_router(first.address)
    for name in ("a", "b", "c"):
        await load(running, name, f"/{name}")
    second.may_load.clear()
    running.router.registry.announce("test", [second.address])
    await eventually(lambda: second.num_loads == 1, "nothing is brought")
    for name in ("a", "b"):
        await unload(running, name)
    second.may_load.set()
    await eventually(lambda: "c" in second.adapters, "it has not the rest")
    assert list(second.adapters) == ["c"]


async def test_a_worker_that_comes_back_gets_them_again(start_engine: StartEngine, start_router: StartRouter) -> None:
    engines = [await start_engine(max_loras=1) for _ in range(2)]
    running = await start_router(*(engine.address for engine in engines))
    await load(running)
    async with restarted(running, engines[0]) as again:
        await eventually(lambda: "a" in again.adapters, "it has no adapter")


@contextlib.asynccontextmanager
async def restarted(running: Running, engine: FakeEngine, *static: str) -> AsyncIterator[FakeEngine]:
    """Another process at the worker's address, which serves these adapters from its start."""
    port = engine.rpc.port
    (worker,) = [each for each in running.router.registry.workers if each.address == engine.address]
    await engine.close()
    await eventually(lambda: not worker.ready, "nobody misses the worker")
    again = FakeEngine(FakeOptions(max_loras=1), GrpcServerOptions(port=port), RpcSecurityOptions())
    again.adapters = adapters(*static)
    await again.start()
    try:
        await eventually(lambda: worker.ready, "it does not join")
        yield again
    finally:
        await again.close()


def adapters(*names: str) -> dict[str, common_pb2.AdapterInfo]:
    return {name: common_pb2.AdapterInfo(name=name, path=f"/{name}", revision=name) for name in names}


async def test_a_worker_that_restarts_with_what_was_unloaded_unloads_it_too(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engines = [await start_engine(max_loras=1) for _ in range(2)]
    for engine in engines:
        engine.adapters = adapters("a", "b")
    running = await start_router(*(engine.address for engine in engines))
    for name in ("a", "b"):
        await unload(running, name)
    await load(running, "b", "/b")
    async with restarted(running, engines[0], "b", "new", "a") as again:
        await eventually(lambda: "a" not in again.adapters, "it serves what was unloaded")
        assert list(again.adapters) == ["b", "new"]
        await eventually(lambda: not any(worker.serves("a") for worker in running.router.registry.workers))


async def test_a_fleet_that_restarts_as_a_whole_serves_what_its_options_say(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine(max_loras=1)
    engine.adapters = adapters("a")
    running = await start_router(engine.address)
    await unload(running)
    async with restarted(running, engine, "a") as again:
        await load(running, "b", "/b")
        assert list(again.adapters) == ["a", "b"]


async def test_what_another_router_does_is_seen(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine(max_loras=1)
    one, two = await start_router(engine.address), await start_router(engine.address)
    await load(one)
    (worker,) = two.router.registry.workers
    await eventually(lambda: worker.serves("a"), "the other router does not know")
    assert await told(two) == [["a"]]
    await unload(one)
    await eventually(lambda: not worker.serves("a"), "the other router still knows")


async def test_requests_go_where_the_adapter_is(start_engine: StartEngine, start_router: StartRouter) -> None:
    """Requests of one adapter go to the same worker while the workers' loads are similar."""
    engines = [await start_engine(max_loras=1) for _ in range(2)]
    running = await start_router(*(engine.address for engine in engines))
    for name in ("a", "b"):
        await load(running, name, f"/{name}")
    async with running.client.session() as session:
        outputs = [
            await session.start(number, generation([number] * 4, 4, model="ab"[number % 2])) for number in range(12)
        ]
        for output in outputs:
            await output.wait_ended()
    seen = [{started.model for started in engine.record.started} for engine in engines]
    assert sorted(seen, key=sorted) == [{"a"}, {"b"}]


async def test_prefixes_of_an_adapter_are_its_own(start_engine: StartEngine, start_router: StartRouter) -> None:
    engines = [await start_engine(max_loras=2) for _ in range(2)]
    running = await start_router(*(engine.address for engine in engines))
    await load(running)
    prompt = list(range(160))
    async with running.client.session() as session:
        for number, model in enumerate(("a", "a", "fake", "a")):
            await (await session.start(number, generation(prompt, 2, model=model))).wait_ended()
    a = [engine for engine in engines if any(started.model == "a" for started in engine.record.started)]
    assert len(a) == 1  # where its blocks are cached
