"""RouterService.Session: many requests of one gateway, batched."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from quire.errors import Internal, InvalidRequest, NotFound, Overloaded, Unavailable
from quire.v1 import common_pb2
from tests.router.conftest import StartEngine, StartRouter
from tests.support.fake_engine import FakeOptions, expected_tokens
from tests.support.router_client import generation
from tests.support.waiting import WAIT_SECONDS, eventually


async def test_requests_of_two_gateways_do_not_mix(start_engine: StartEngine, start_router: StartRouter) -> None:
    """Both use the same stream ids on the same worker, so that its frames have to be split."""
    running = await start_router((await start_engine()).address)
    async with running.client.session() as first, running.client.session() as second:
        for number in range(10):
            await first.start(number, generation([100, number], 30))
            await second.start(number, generation([200, number], 25))
        for number in range(10):
            assert (await first.outputs[number].wait_ended()).tokens[0] == expected_tokens([100, number], 30)
            assert (await second.outputs[number].wait_ended()).tokens[0] == expected_tokens([200, number], 25)
        assert {output.finals for output in (*first.outputs.values(), *second.outputs.values())} == {1}


async def test_choices_of_one_request(start_engine: StartEngine, start_router: StartRouter) -> None:
    running = await start_router((await start_engine()).address)
    async with running.client.session() as session:
        output = await (await session.start(7, generation([1, 2], 9, n=3))).wait_ended()
        assert dict(output.tokens) == {choice: expected_tokens([1, 2], 9, choice) for choice in range(3)}
        assert output.usage is not None
        assert output.usage.completion_tokens == 27


async def test_200_streams_a_third_cancelled(start_engine: StartEngine, start_router: StartRouter) -> None:
    engines = [await start_engine(step_seconds=0.01), await start_engine(step_seconds=0.01)]
    running = await start_router(*(engine.address for engine in engines))
    async with running.client.session() as session:
        for number in range(200):
            await session.start(number, generation([number], None if number % 3 == 0 else 10 + number % 20))
        for number in range(0, 200, 3):
            await session.outputs[number].wait_tokens()
        await session.abort(*range(0, 200, 3))
        for number in range(200):
            if number % 3:
                output = await session.outputs[number].wait_ended()
                assert output.error is None
                assert output.tokens[0] == expected_tokens([number], 10 + number % 20)
        await eventually(lambda: not len(running.router.table))
        assert not any(engine.live for engine in engines)
        assert sum(len(engine.record.aborted) for engine in engines) == 67
    # the router's fixture checks that its tables are empty


async def test_a_stream_id_in_use_ends_the_session(start_engine: StartEngine, start_router: StartRouter) -> None:
    """An error delta would seem to end the request that runs under this id; an engine ends the session, too."""
    engine = await start_engine()
    running = await start_router(engine.address)
    async with running.client.session() as session:
        await (await session.start(1, generation([1]))).wait_tokens()
        output = await session.start(1, generation([2]))
        async with asyncio.timeout(WAIT_SECONDS):
            assert await session.call.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert output.error is None
        await eventually(lambda: len(engine.record.aborted) == 1)


async def test_a_gateway_that_vanishes_aborts_its_requests(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine()
    running = await start_router(engine.address)
    async with running.client.session() as other:
        async with running.client.session() as session:
            for number in range(5):
                await (await session.start(number, generation([number]))).wait_tokens()
        survivor = await other.start(1, generation([9], 10))
        await eventually(lambda: len(engine.record.aborted) == 5)
        assert (await survivor.wait_ended()).tokens[0] == expected_tokens([9], 10)


async def test_after_half_close_the_session_ends_with_its_last_request(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    running = await start_router((await start_engine()).address)
    async with running.client.session() as session:
        await session.start(1, generation([1], 20))
        await session.start(2, generation([2], 40))
        await session.call.done_writing()
        async with asyncio.timeout(WAIT_SECONDS):
            await session.call.code()
        # The status may arrive before the last frames are read.
        assert (await session.outputs[1].wait_ended()).tokens[0] == expected_tokens([1], 20)
        assert (await session.outputs[2].wait_ended()).tokens[0] == expected_tokens([2], 40)


async def test_heartbeats_tell_how_many_workers_are_ready_and_the_list_their_load(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engines = [await start_engine(total_kv_blocks=100), await start_engine(total_kv_blocks=50)]
    running = await start_router(*(engine.address for engine in engines))

    async def running_sequences(count: int) -> list[common_pb2.EngineLoad]:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                loads = [worker.load for worker in (await running.client.workers()).values()]
                if sum(load.running_sequences for load in loads) == count:
                    return loads
                await asyncio.sleep(0.02)

    async with running.client.session() as session:
        for number in range(4):
            await session.start(number, generation([number]))
        loads = await running_sequences(4)
        assert sum(load.total_kv_blocks for load in loads) == 150
        await session.abort(0, 1, 2, 3)
        loads = await running_sequences(0)
        before = len(session.ready_workers)
        await eventually(lambda: len(session.ready_workers) > before)
        assert session.ready_workers[-1] == 2
        generated = sum(load.counters.generation_tokens for load in loads)
        assert generated == sum(engine.counters.generation_tokens for engine in engines)


async def test_a_router_that_drains_says_so_at_once(
    start_engine: StartEngine, start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.heartbeat.HEARTBEAT_SECONDS", 600.0)  # it does not wait for the next one
    running = await start_router((await start_engine()).address)
    serving = asyncio.create_task(running.router.serve_until_stopped())
    async with running.client.session() as session:
        await (await session.start(1, generation([1]))).wait_tokens()
        assert not session.draining
        running.router.server.stop_soon()
        await eventually(lambda: session.draining)
        assert not session.outputs[1].finals
        await session.abort(1)
    await asyncio.wait_for(serving, WAIT_SECONDS)


async def test_an_unknown_model_names_the_known_ones(start_engine: StartEngine, start_router: StartRouter) -> None:
    engines = [await start_engine(models=("llama", "llama-alias")), await start_engine(models=("qwen",))]
    running = await start_router(*(engine.address for engine in engines))
    async with running.client.session() as session:
        output = await (await session.start(1, generation([1], 1, model="gpt-4"))).wait_ended()
        assert isinstance(output.error, NotFound)
        assert "llama, llama-alias, qwen" in output.error.message
        assert output.error.parameter == "model"
        output = await (await session.start(2, generation([1], 1))).wait_ended()
        assert isinstance(output.error, InvalidRequest)
        assert "Name one of" in output.error.message


async def test_each_model_goes_to_its_workers(start_engine: StartEngine, start_router: StartRouter) -> None:
    llama, qwen = await start_engine(models=("llama", "alias")), await start_engine(models=("qwen",))
    running = await start_router(llama.address, qwen.address)
    async with running.client.session() as session:
        for number, model in enumerate(["llama", "qwen", "alias", "qwen", "qwen"]):
            await (await session.start(number, generation([1], 1, model=model))).wait_ended()
    assert [g.model for g in llama.record.started] == ["llama", "alias"]
    assert [g.model for g in qwen.record.started] == ["qwen"] * 3


async def test_the_bound_on_running_requests(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine(silent=True)
    running = await start_router(engine.address, max_inflight_requests=2)
    async with running.client.session() as session:
        await session.start(1, generation([1], 5))
        await session.start(2, generation([2], 5))
        refused = await (await session.start(3, generation([3], 5))).wait_ended()
        assert isinstance(refused.error, Overloaded)
        assert "--max-inflight-requests" in refused.error.message
        await session.abort(1)
        engine.options = FakeOptions()
        assert (await (await session.start(4, generation([4], 5))).wait_ended()).error is None


async def test_aborting_the_unknown_is_no_error(start_engine: StartEngine, start_router: StartRouter) -> None:
    running = await start_router((await start_engine()).address)
    async with running.client.session() as session:
        await (await session.start(1, generation([1], 1))).wait_ended()
        await session.abort(1, 2, 3)
        output = await (await session.start(4, generation([1], 5))).wait_ended()
        assert output.tokens[0] == expected_tokens([1], 5)


async def test_a_policy_that_fails_costs_one_request(
    start_engine: StartEngine, start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_router((await start_engine()).address)
    async with running.client.session() as session:
        survivor = await (await session.start(1, generation([1], 50))).wait_tokens()
        with monkeypatch.context() as broken:
            broken.setattr("router.placement.policies.prefix.cost_seconds", lambda *facts: 1 / 0)
            failed = await (await session.start(2, generation([2], 5))).wait_ended()
        assert isinstance(failed.error, Internal)
        assert (await survivor.wait_ended()).tokens[0] == expected_tokens([1], 50)


async def test_no_worker_at_all(monkeypatch: pytest.MonkeyPatch, start_router: StartRouter) -> None:
    monkeypatch.setattr("router.workers.ready_workers._FIRST_SECONDS", 0.1)  # for which a first worker is waited for
    running = await start_router()
    async with running.client.session() as session:
        output = await (await session.start(1, generation([1]))).wait_ended()
        assert isinstance(output.error, Unavailable)
        assert "--workers" in output.error.message


async def test_a_request_never_outlives_its_timeout(start_engine: StartEngine, start_router: StartRouter) -> None:
    """The fake engine ignores timeouts, as a stuck one would."""
    engine = await start_engine(silent=True)
    running = await start_router(engine.address)
    async with running.client.session() as session:
        output = await (await session.start(1, generation([1], timeout_ms=1000, request_id="slow"))).wait_ended()
        assert output.error is not None
        assert output.error.reason == "DEADLINE_EXCEEDED"
        await eventually(lambda: engine.record.aborted == ["slow"])


async def test_a_timeout_beyond_all_bounds(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine()
    running = await start_router(engine.address)
    async with running.client.session() as session:
        output = await (await session.start(1, generation([1], 1, timeout_ms=2**64 - 1))).wait_ended()
    assert isinstance(output.error, InvalidRequest) and output.error.parameter == "timeout_ms"
    assert not engine.record.started


async def test_the_worker_learns_what_is_left_of_the_timeout(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine()
    running = await start_router(engine.address)
    async with running.client.session() as session:
        await (await session.start(1, generation([1], 1, timeout_ms=5000))).wait_ended()
        await (await session.start(2, generation([1], 1))).wait_ended()
    assert 4000 < engine.record.started[0].timeout_ms <= 5000
    assert engine.record.started[1].timeout_ms == 0


@pytest.mark.parametrize("policy", ["least_loaded", "round_robin"])
async def test_a_burst_spreads_evenly(start_engine: StartEngine, start_router: StartRouter, policy: str) -> None:
    engines = [await start_engine(silent=True) for _ in range(3)]
    running = await start_router(*(engine.address for engine in engines), routing_policy=policy)
    async with running.client.session() as session:
        for number in range(30):
            await session.start(number, generation([number]))
        await eventually(lambda: sum(len(engine.live) for engine in engines) == 30)
        assert [len(engine.live) for engine in engines] == [10, 10, 10]


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("n", generation([1], n=2**31)),
        ("tenant", generation([1], tenant="t" * 513)),
        ("session_id", generation([1], session_id="s" * 513)),
    ],
)
async def test_what_the_router_itself_keeps_is_bounded(
    start_engine: StartEngine, start_router: StartRouter, field: str, request_: common_pb2.Generation
) -> None:
    engine = await start_engine()
    running = await start_router(engine.address)
    async with running.client.session() as session:
        refused = await (await session.start(1, request_)).wait_ended()
    assert isinstance(refused.error, InvalidRequest)
    assert refused.error.parameter == field
    assert not engine.record.started
