"""Requests that wait for a worker with capacity."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from quire.errors import DeadlineExceeded, InvalidRequest, NotFound, Overloaded, QuireError, Unavailable
from quire.options.server import GrpcServerOptions
from quire.v1 import router_pb2
from router.placement.policies.base import RouteRequest
from router.requests.waiting_room import WaitingRoom
from tests.router.conftest import StartEngine, StartRouter
from tests.support.engine_process import engine_process, free_port
from tests.support.fake_engine import FakeEngine, FakeOptions, expected_tokens
from tests.support.router_client import generation
from tests.support.waiting import eventually

# A worker that runs one sequence accepts two more, so that it never idles.
FEW = {"max_num_seqs": 1}
AT_WORKER = 3


async def test_what_a_full_fleet_has_no_room_for_waits_and_is_served(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine(**FEW)
    running = await start_router(engine.address)
    async with running.client.session() as session:
        outputs = [await session.start(number, generation([number], 5)) for number in range(20)]
        for number, output in enumerate(outputs):
            await output.wait_ended()
            assert (output.error, output.tokens[0]) == (None, expected_tokens([number], 5))
    assert len(engine.record.started) == 20


async def test_the_queue_and_the_time_in_it_are_told(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine(silent=True, **FEW)
    running = await start_router(engine.address)
    async with running.client.session() as session:
        outputs = [await session.start(number, generation([number], 3, model="fake")) for number in range(6)]
        await eventually(lambda: session.queues == {"fake": 6 - len(engine.live)} and engine.live)
        served = len(engine.live)
        engine.options = FakeOptions(**FEW)
        for output in outputs:
            await output.wait_ended()
        waited = [output.usage.router_queue_seconds for output in outputs]
        assert waited[:served] == [0.0] * served
        assert all(0 < seconds < 60 for seconds in waited[served:])
        assert len(waited[served:]) == 6 - served > 0
        told = running.router.metrics.get_sample_value
        assert told("quire_router_queue_seconds_bucket", {"le": "0.0"}) == served
        assert told("quire_router_queue_seconds_sum") == pytest.approx(sum(waited))
        await eventually(lambda: not session.queues)


async def test_tenants_take_turns(start_engine: StartEngine, start_router: StartRouter) -> None:
    """A tenant with many requests does not delay another one."""
    engine = await start_engine(silent=True, **FEW)
    running = await start_router(engine.address)
    async with running.client.session() as session:
        for number in range(30):
            await session.start(number, generation([number], 3, request_id=f"greedy{number}", tenant="greedy"))
        modest = [
            await session.start(100 + n, generation([n], 3, request_id=f"modest{n}", tenant="modest")) for n in range(3)
        ]
        await eventually(lambda: running.router.dispatcher.waiting.waiting == 30 + 3 - len(engine.live))
        metrics = running.router.metrics
        assert metrics.get_sample_value("quire_router_queued_requests", {"tenant": "modest"}) == 3
        engine.options = FakeOptions(**FEW)
        for output in modest:
            await output.wait_ended()
        names = [request.request_id for request in engine.record.started]
        assert max(names.index(f"modest{n}") for n in range(3)) < AT_WORKER + 2 * 3 + 1
        await eventually(lambda: not len(running.router.table))


async def test_a_tenant_with_three_times_the_weight_has_three_times_the_turns(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine(silent=True, **FEW)
    running = await start_router(engine.address)
    async with running.client.session() as session:
        outputs = []
        for tenant, weight, count in (("first", 0, AT_WORKER), ("heavy", 3, 12), ("light", 0, 12)):
            for _ in range(count):
                number = len(outputs)
                asked = generation([number], 1, request_id=f"{tenant}{number}", tenant=tenant, tenant_weight=weight)
                outputs.append(await session.start(number, asked))
        await eventually(lambda: running.router.dispatcher.waiting.waiting == 24)
        engine.options = FakeOptions(**FEW)
        for output in outputs:
            await output.wait_ended()
        after_the_first = [request.request_id for request in engine.record.started[AT_WORKER:]]
        assert sum(name.startswith("heavy") for name in after_the_first[:12]) == 9
        refused = await session.start(100, generation([1], 1, tenant_weight=-1.0))
        await refused.wait_ended()
        assert isinstance(refused.error, InvalidRequest)
        assert refused.error.parameter == "tenant_weight"


async def test_urgent_requests_go_first(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine(silent=True, **FEW)
    running = await start_router(engine.address)
    async with running.client.session() as session:
        for number in range(10):
            await session.start(number, generation([number], 3))
        urgent = await session.start(99, generation([99], 3, request_id="urgent", priority=-1))
        await eventually(lambda: running.router.dispatcher.waiting.waiting == 11 - len(engine.live))
        engine.options = FakeOptions(**FEW)
        await urgent.wait_ended()
        assert [request.request_id for request in engine.record.started].index("urgent") <= AT_WORKER
        await eventually(lambda: not len(running.router.table))


async def test_a_full_queue_refuses_with_what_to_do(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine(silent=True, **FEW)
    running = await start_router(engine.address, max_queued_requests=2)
    async with running.client.session() as session:
        for number in range(AT_WORKER + 2):
            await session.start(number, generation([number], 3))
        await eventually(lambda: running.router.dispatcher.waiting.waiting == 2)
        refused = await (await session.start(50, generation([50], 3))).wait_ended()
        assert isinstance(refused.error, Overloaded)
        assert refused.error.reason == "QUEUE_FULL"
        assert "--max-queued-requests" in refused.error.message
        await session.abort(*range(AT_WORKER + 2))
        await eventually(lambda: not running.router.dispatcher.waiting.waiting)


def test_who_is_refused_is_told_how_long_the_next_one_has_waited() -> None:
    class Clock:
        now = 100.0

        def time(self) -> float:
            return self.now

        def call_at(self, when: float, callback: Callable[..., Any], *args: Any) -> Mock:
            return Mock()

    clock, refused = Clock(), list[QuireError]()
    room: WaitingRoom[Any] = WaitingRoom(
        2, 1000, 60.0, clock, lambda waiter: False, lambda waiter, error: refused.append(error)
    )
    for number in range(3):
        request = RouteRequest(f"r{number}", "fake", prompt_tokens=1, sequences=1, output_tokens=1.0)
        room.enter(
            SimpleNamespace(request=request, deadline=None, waited=0.0, begun=False, entry=None, wait_timer=None)
        )
        clock.now += 10
    assert [error.retry_after_seconds for error in refused if isinstance(error, Overloaded)] == [20.0]


async def test_deadlines_and_the_longest_wait_hold_in_the_queue(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine(silent=True, **FEW)
    running = await start_router(engine.address, max_queue_seconds=0.5)
    async with running.client.session() as session:
        for number in range(AT_WORKER):
            await session.start(number, generation([number], 3))
        await eventually(lambda: len(engine.live) == AT_WORKER)
        hasty = await session.start(10, generation([10], 3, timeout_ms=100))
        patient = await session.start(11, generation([11], 3))
        assert isinstance((await hasty.wait_ended()).error, DeadlineExceeded)
        late = (await patient.wait_ended()).error
        assert isinstance(late, Overloaded)
        assert (late.reason, late.retry_after_seconds) == ("QUEUE_TIMEOUT", 0.5)
        assert len(engine.record.started) == AT_WORKER


async def test_who_leaves_the_queue_is_not_served(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine(silent=True, **FEW)
    running = await start_router(engine.address)
    async with running.client.session() as session:
        for number in range(10):
            await session.start(number, generation([number], 3, request_id=f"r{number}"))
        await eventually(lambda: running.router.dispatcher.waiting.waiting == 10 - AT_WORKER)
        await session.abort(*range(AT_WORKER, 9))
        await eventually(lambda: running.router.dispatcher.waiting.waiting == 1)
        engine.options = FakeOptions(**FEW)
        await session.outputs[9].wait_ended()
    assert sorted(request.request_id for request in engine.record.started) == ["r0", "r1", "r2", "r9"]


async def test_new_requests_wait_for_a_worker_that_restarts(start_router: StartRouter) -> None:
    """While the killed worker is away, the queue is bounded and deadlines hold; then requests are served."""
    port = free_port()
    with engine_process(port) as first:
        running = await start_router(first.address, max_queued_requests=20)
        first.kill()
    async with running.client.session() as session:
        await running.client.wait_state(first.address, router_pb2.WORKER_STATE_UNREACHABLE)
        outputs = [await session.start(number, generation([number], 3)) for number in range(19)]
        hasty = await session.start(100, generation([1], 3, timeout_ms=50))
        too_many = await session.start(101, generation([1], 3))
        refused = (await too_many.wait_ended()).error
        assert isinstance(refused, Overloaded)
        assert refused.reason == "QUEUE_FULL"
        assert isinstance((await hasty.wait_ended()).error, DeadlineExceeded)
        with engine_process(port):
            for number, output in enumerate(outputs):
                await output.wait_ended()
                assert (output.error, output.tokens[0]) == (None, expected_tokens([number], 3))


async def test_what_another_router_has_begun_is_not_refused(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine()
    running = await start_router(engine.address, max_queued_requests=0, max_absence_seconds=0)
    await engine.rpc.set_serving(False)
    await running.client.wait_state(engine.address, router_pb2.WORKER_STATE_DRAINING)
    async with running.client.session() as session:
        begun = generation([5], 4)
        begun.progress.add(token_ids=expected_tokens([5], 2))
        output = await session.start(1, begun)
        await eventually(lambda: running.router.dispatcher.waiting.waiting)
        refused = await (await session.start(2, generation([5], 4))).wait_ended()
        assert isinstance(refused.error, Overloaded)
        await engine.rpc.set_serving(True)
        await output.wait_ended()
        assert (output.error, output.tokens[0]) == (None, expected_tokens([5], 4)[2:])


async def test_new_requests_wait_while_the_only_worker_stalls_and_while_it_drains(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine(max_num_batched_tokens=256)
    running = await start_router(engine.address)
    (worker,) = running.router.registry.workers
    async with running.client.session() as session:
        engine.options = FakeOptions(wedged=True, max_num_batched_tokens=256)
        await session.start(1, generation([1], 3))
        await running.client.wait_state(engine.address, router_pb2.WORKER_STATE_UNREACHABLE)
        assert "step" in worker.condition.reason
        late = await session.start(2, generation([2], 3))
        await eventually(lambda: running.router.dispatcher.waiting.waiting)
        engine.options = FakeOptions()
        assert (await late.wait_ended()).error is None
        await eventually(lambda: worker.ready)
        await engine.rpc.set_serving(False)
        await eventually(lambda: not worker.ready)
        output = await session.start(3, generation([3], 3))
        await eventually(lambda: running.router.dispatcher.waiting.waiting)
        await engine.rpc.set_serving(True)
        assert (await output.wait_ended()).error is None
        assert (await session.outputs[1].wait_ended()).error is None


async def test_a_fleet_that_is_gone_refuses_at_once(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine()
    running = await start_router(engine.address, max_absence_seconds=0.5)
    assert await running.client.generate(generation([1], 3)) == expected_tokens([1], 3)
    await engine.rpc.set_serving(False)
    await running.client.wait_state(engine.address, router_pb2.WORKER_STATE_DRAINING)
    await asyncio.sleep(0.6)
    async with running.client.session() as session:
        gone = (await (await session.start(2, generation([2], 3))).wait_ended()).error
        assert isinstance(gone, Unavailable)
        assert engine.address in gone.message


@pytest.mark.slow
async def test_new_requests_wait_for_a_worker_that_loads_however_long_it_was_away(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    port = free_port()
    with engine_process(port) as first:
        running = await start_router(first.address, max_absence_seconds=0)
    await running.client.wait_state(first.address, router_pb2.WORKER_STATE_UNREACHABLE)
    reborn = FakeEngine(server=GrpcServerOptions(port=port))
    await reborn.rpc.start()  # listens, NOT_SERVING
    (worker,) = running.router.registry.workers
    await eventually(lambda: worker.condition.coming)
    async with running.client.session() as session:
        output = await session.start(1, generation([1], 3))
        await eventually(lambda: running.router.dispatcher.waiting.waiting)
        await reborn.begin()
        assert (await output.wait_ended()).error is None
    await reborn.close()


async def test_new_requests_wait_for_a_model_whose_worker_has_just_left(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """A worker may restart for longer than its lease; its model stays known although others serve other models."""
    old, other = await start_engine(models=("old",)), await start_engine(models=("other",))
    running = await start_router(other.address)
    registry = running.router.registry
    registry.announce("test", [old.address])
    await running.client.wait_ready(old.address)
    async with running.client.session() as session:
        await (await session.start(1, generation([1], 3, model="old"))).wait_ended()
        registry.announce("test", [])
        assert len(registry.workers) == 1
        output = await session.start(2, generation([2], 3, model="old"))
        unknown = await (await session.start(3, generation([2], 3, model="unknown"))).wait_ended()
        assert isinstance(unknown.error, NotFound)
        assert running.router.dispatcher.waiting.waiting == 1
        registry.announce("test", [old.address])
        assert (await output.wait_ended()).error is None
