"""Workers that die, freeze, drain, restart and refuse."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from quire.errors import InvalidRequest, Unavailable
from quire.rpc.settings import LATE_SECONDS
from quire.v1 import router_pb2
from tests.router.conftest import Running, StartEngine, StartRouter
from tests.support.engine_process import engine_process, free_port
from tests.support.fake_engine import FakeEngine, FakeOptions, expected_tokens
from tests.support.router_client import GatewaySession, generation
from tests.support.waiting import eventually

READY = router_pb2.WORKER_STATE_READY


async def start_where(session: GatewaySession, running: Running, address: str, numbers: range) -> list[int]:
    """Starts endless requests; those that run on the worker with the address."""
    for number in numbers:
        await (await session.start(number, generation([number]))).wait_tokens()
    (caller,) = running.router.dispatcher.sessions
    return [n for n, stream in caller.streams.items() if stream.worker and stream.worker.address == address]


async def test_kill_ends_its_requests_spares_the_others_and_the_worker_comes_back(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    healthy = await start_engine(step_seconds=0.02)
    port = free_port()
    with engine_process(port, "--step-ms", "20") as victim:
        running = await start_router(healthy.address, victim.address)
        async with running.client.session() as session:
            hit = await start_where(session, running, victim.address, range(10))
            assert len(hit) == 5
            victim.kill()
            async with asyncio.timeout(1.0):
                for number in hit:
                    output = await session.outputs[number].wait_ended()
                    assert isinstance(output.error, Unavailable)
                    assert output.error.reason == "WORKER_LOST"
            assert (await running.client.workers())[victim.address].state == router_pb2.WORKER_STATE_UNREACHABLE
            spared = [number for number in range(10) if number not in hit]
            assert not any(session.outputs[number].ended.is_set() for number in spared)
            for number in range(10, 14):
                await (await session.start(number, generation([number], 3))).wait_ended()
                assert session.outputs[number].tokens[0] == expected_tokens([number], 3)
            with engine_process(port) as reborn:
                await running.client.wait_ready(reborn.address)
                assert len(await start_where(session, running, reborn.address, range(20, 28))) > 0


async def test_requests_without_a_token_are_retried_elsewhere(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    with engine_process(free_port(), "--silent") as victim:
        running = await start_router(victim.address)
        async with running.client.session() as session:
            for number in range(8):
                await session.start(number, generation([number], 5))
            await eventually(lambda: len(running.router.table) == 8)
            rescue = await start_engine()
            running.router.registry.announce("test", [rescue.address])
            await running.client.wait_ready(rescue.address)
            victim.kill()
            outputs = [await session.outputs[number].wait_ended() for number in range(8)]
    rescued = [number for number, output in enumerate(outputs) if output.error is None]
    assert len(rescued) == 3  # the retry budget of eight requests
    for number in rescued:
        assert outputs[number].tokens[0] == expected_tokens([number], 5)
        assert outputs[number].finals == 1
    assert all(isinstance(output.error, Unavailable) for output in outputs if output.error)


async def test_a_request_is_retried_once_only(start_engine: StartEngine, start_router: StartRouter) -> None:
    sick = Unavailable("This worker is draining.")
    engines = [await start_engine(start_error=sick), await start_engine(start_error=sick)]
    running = await start_router(*(engine.address for engine in engines))
    async with running.client.session() as session:
        output = await (await session.start(1, generation([1], 5))).wait_ended()
        assert isinstance(output.error, Unavailable)
        engines[1].options = FakeOptions()
        for number in range(2, 8):
            output = await (await session.start(number, generation([number], 5))).wait_ended()
            assert output.error is None
            assert output.tokens[0] == expected_tokens([number], 5)


async def test_other_errors_are_not_retried(start_engine: StartEngine, start_router: StartRouter) -> None:
    engines = [await start_engine(start_error=InvalidRequest("No.", parameter="top_p")) for _ in range(2)]
    running = await start_router(*(engine.address for engine in engines))
    async with running.client.session() as session:
        output = await (await session.start(1, generation([1], 5))).wait_ended()
        assert isinstance(output.error, InvalidRequest)
        assert output.error.parameter == "top_p"


async def test_a_frozen_worker_gets_nothing_new_and_loses_its_requests(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    healthy = await start_engine(step_seconds=0.02)
    with engine_process(free_port(), "--step-ms", "20") as frozen:
        running = await start_router(healthy.address, frozen.address)
        async with running.client.session() as session:
            hit = await start_where(session, running, frozen.address, range(4))
            frozen.signal(signal.SIGSTOP)
            start = time.monotonic()
            worker = await running.client.wait_state(frozen.address, router_pb2.WORKER_STATE_UNREACHABLE, 5)
            assert worker.reason
            # A frame may be on its way when the signal is sent; the bound leaves room for a busy machine.
            assert time.monotonic() - start < LATE_SECONDS + 1.5
            for number in range(10, 15):
                await (await session.start(number, generation([number], 3))).wait_ended()
            for number in hit:
                assert isinstance((await session.outputs[number].wait_ended()).error, Unavailable)
            frozen.signal(signal.SIGCONT)
            await running.client.wait_ready(frozen.address)


async def test_a_draining_worker_finishes_what_it_has(start_engine: StartEngine, start_router: StartRouter) -> None:
    healthy = await start_engine()
    with engine_process(free_port(), "--step-ms", "20") as leaving:
        running = await start_router(healthy.address, leaving.address)
        async with running.client.session() as session:
            for number in range(6):
                await (await session.start(number, generation([number], 60))).wait_tokens()
            leaving.signal(signal.SIGTERM)
            worker = await running.client.wait_state(leaving.address, router_pb2.WORKER_STATE_DRAINING)
            assert "NOT_SERVING" in worker.reason
            for number in range(10, 16):
                await (await session.start(number, generation([number], 3))).wait_ended()
            for number in (*range(6), *range(10, 16)):
                output = await session.outputs[number].wait_ended()
                assert output.error is None
                assert output.tokens[0] == expected_tokens([number], 60 if number < 6 else 3)
        assert leaving.wait_exit() == 0


async def test_health_that_comes_and_goes(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine()
    running = await start_router(engine.address)
    await engine.rpc.set_serving(False)
    await running.client.wait_state(engine.address, router_pb2.WORKER_STATE_DRAINING)
    async with running.client.session() as session:
        output = await (await session.start(1, generation([1], 5))).wait_ended()
        assert isinstance(output.error, Unavailable)
        assert engine.address in output.error.message
    await engine.rpc.set_serving(True)
    await running.client.wait_ready(engine.address)


async def test_a_worker_that_still_loads_is_starting(start_router: StartRouter) -> None:
    engine = FakeEngine()
    await engine.rpc.start()  # listens, NOT_SERVING
    running = await start_router()
    running.router.registry.announce("test", [engine.address])
    worker = await running.client.wait_state(engine.address, router_pb2.WORKER_STATE_STARTING)
    await eventually(lambda: "NOT_SERVING" in next(iter(running.router.registry.workers)).condition.reason)
    assert not worker.HasField("model_info")
    await engine.rpc.set_serving(True)
    await running.client.wait_ready(engine.address)
    await engine.close()


async def test_a_restarted_worker_may_serve_another_model(start_router: StartRouter) -> None:
    port = free_port()
    with engine_process(port, "--models", "old") as first:
        running = await start_router(first.address)
        first.kill()
        await running.client.wait_state(first.address, router_pb2.WORKER_STATE_UNREACHABLE)
    with engine_process(port, "--models", "new") as second:
        await running.client.wait_ready(second.address)
        worker = (await running.client.workers())[second.address]
        assert list(worker.model_info.served_model_names) == ["new"]


async def test_a_router_that_drains_finishes_and_takes_nothing_new(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    running = await start_router((await start_engine(step_seconds=0.02)).address)
    async with running.client.session() as session:
        await (await session.start(1, generation([1], 40))).wait_tokens()
        draining = asyncio.create_task(running.router.dispatcher.drain())
        await asyncio.sleep(0)
        refused = await (await session.start(2, generation([2], 1))).wait_ended()
        assert isinstance(refused.error, Unavailable)
        assert not draining.done()
        assert (await session.outputs[1].wait_ended()).tokens[0] == expected_tokens([1], 40)
        await asyncio.wait_for(draining, 5)


@pytest.mark.parametrize("reads", [True, False])
async def test_a_gateway_that_does_not_read_is_bounded(
    start_engine: StartEngine, start_router: StartRouter, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    """With a bound of 2,000 deltas, a gateway that leaves more unread loses its session, and nobody else does."""
    monkeypatch.setattr("quire.rpc.session.MAX_PENDING_ITEMS", 2000)
    engine = await start_engine(step_seconds=0.001)
    running = await start_router(engine.address)
    async with running.client.session() as other:
        call = running.client.stub.Session()
        frame = router_pb2.RouterServiceSessionRequest()
        for number in range(20):
            frame.starts.add(stream_id=number, generation=generation([number], n=64))
        await call.write(frame)
        await eventually(lambda: len(running.router.table) == 20)
        if reads:
            for _ in range(50):
                assert await call.read()
            assert len(running.router.table) == 20
        else:
            await eventually(lambda: not len(running.router.table), "the requests of the deaf gateway")
            output = await (await other.start(1, generation([1], 5))).wait_ended()
            assert output.tokens[0] == expected_tokens([1], 5)
        call.cancel()
