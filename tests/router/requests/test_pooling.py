"""Requests of pooling models: placed by load, retried elsewhere, bounded, cancelled."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable
from typing import Any

import grpc
import pytest

from quire.errors import ENGINE_FAULT, DeadlineExceeded, Internal, InvalidRequest, NotFound, Overloaded, Unavailable
from quire.rpc.status import from_rpc_error
from quire.v1 import common_pb2, engine_pb2, router_pb2
from tests.router.conftest import Running, StartEngine, StartRouter
from tests.support.engine_process import engine_process, free_port
from tests.support.fake_engine import FakeEngine
from tests.support.fake_pooling import EMBEDDER, embedding
from tests.support.router_client import generation
from tests.support.waiting import WAIT_SECONDS, eventually


def request(*inputs: list[int], **fields: Any) -> common_pb2.PoolRequest:
    return common_pb2.PoolRequest(inputs=[common_pb2.PoolingInput(token_ids=ids) for ids in inputs], **fields)


async def pool(running: Running, message: common_pb2.PoolRequest, timeout: float = WAIT_SECONDS) -> Any:
    try:
        return await running.client.stub.Pool(message, timeout=timeout)
    except grpc.aio.AioRpcError as error:
        raise from_rpc_error(error) from error


def begin(job: Awaitable[Any]) -> asyncio.Future[Any]:
    return asyncio.ensure_future(job)


def received(*engines: FakeEngine) -> list[int]:
    return [len(engine.pooling.received) for engine in engines]


async def test_an_answer_comes_as_the_worker_made_it(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine(pooling=EMBEDDER)
    running = await start_router(engine.address, model_alias=("other=fake",))
    answer = await pool(running, request([5, 6], [7], model="other", request_id="mine"))
    assert [each.num_tokens for each in answer.outputs] == [2, 1]
    assert list(memoryview(answer.outputs[1].data).cast("f")) == pytest.approx(embedding([7]))
    assert (answer.queue_seconds, answer.compute_seconds) == (0.25, 0.5)
    (seen,) = engine.pooling.received
    assert (seen.model, seen.request_id) == ("fake", "mine")
    assert 0 < seen.timeout_ms < 2 * WAIT_SECONDS * 1000


async def test_the_worker_with_the_fewest_tokens_to_compute_gets_the_next_one(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    first, second = [await start_engine(pooling=EMBEDDER) for _ in range(2)]
    for engine in (first, second):
        engine.pooling.hold()
    running = await start_router(first.address, second.address)
    jobs = [begin(pool(running, request([1] * 100)))]
    await eventually(lambda: sum(received(first, second)) == 1, "the first has not come")
    long, short = (first, second) if first.pooling.received else (second, first)
    for count in range(1, 4):  # 20 tokens each, together fewer than the first
        jobs.append(begin(pool(running, request([2] * 20))))
        await eventually(lambda count=count: received(short) == [count], "it went elsewhere")
    for engine in (long, short):
        engine.pooling.release()
    await asyncio.gather(*jobs)
    before = received(first, second)
    for _ in range(6):  # idle workers take turns
        await pool(running, request([3]))
    assert [after - b for after, b in zip(received(first, second), before, strict=True)] == [3, 3]


async def test_idle_workers_that_have_an_adapter_at_hand_go_first(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engines = [await start_engine(pooling=EMBEDDER, max_loras=1) for _ in range(2)]
    running = await start_router(*(engine.address for engine in engines))
    await running.client.stub.LoadAdapter(engine_pb2.LoadAdapterRequest(name="a", path="/a"), timeout=WAIT_SECONDS)
    for _ in range(4):
        await pool(running, request([3], model="a"))
    assert sorted(received(*engines)) == [0, 4]
    assert {each.model for engine in engines for each in engine.pooling.received} == {"a"}


async def test_what_the_workers_have_no_room_for_waits_and_tenants_take_turns(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine(pooling=EMBEDDER, max_num_batched_tokens=10)
    engine.pooling.hold()
    running = await start_router(engine.address, max_queued_requests=3)
    dispatcher = running.router.core.pooling
    jobs = [begin(pool(running, request([1] * 50)))]
    await eventually(lambda: received(engine) == [1], "it has not come")
    for number, tenant in enumerate(("a", "a", "b")):
        jobs.append(begin(pool(running, request([number], tenant=tenant, request_id=f"{tenant}{number}"))))
        await eventually(lambda number=number: dispatcher.waiting.waiting == number + 1, "it does not wait")
    with pytest.raises(Overloaded, match="are already waiting"):
        await pool(running, request([9] * 5, tenant="a"))
    engine.pooling.release()
    await asyncio.gather(*jobs)
    assert [each.request_id for each in engine.pooling.received[1:]] == ["a0", "b2", "a1"]


async def test_bounds_deadlines_and_callers_that_leave(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine(pooling=EMBEDDER)
    engine.pooling.hold()
    running = await start_router(engine.address, max_inflight_requests=1)
    with pytest.raises(DeadlineExceeded):
        await pool(running, request([1], timeout_ms=100))
    leaving = begin(pool(running, request([1])))
    await eventually(lambda: received(engine) == [2], "it has not come")
    with pytest.raises(Overloaded, match="max-inflight-requests"):
        await pool(running, request([1]))
    leaving.cancel()
    await eventually(lambda: engine.pooling.cancelled == 2, "the worker goes on")
    await eventually(lambda: not len(running.router.core.pooling), "it is not forgotten")
    with pytest.raises(InvalidRequest, match="512"):
        await pool(running, request([1], tenant="t" * 513))


async def test_a_caller_that_leaves_as_the_worker_is_lost_is_gone(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engines = [await start_engine(pooling=EMBEDDER) for _ in range(2)]
    for engine in engines:
        engine.pooling.hold()
    running = await start_router(*(engine.address for engine in engines))
    pooling = running.router.core.pooling
    leaving = asyncio.create_task(pooling.pool(request([1]), WAIT_SECONDS))
    await eventually(lambda: sum(received(*engines)) == 1, "it has not come")
    (worker,) = (call.worker for call in pooling._calls)
    assert worker is not None
    pooling.on_lost(worker, Unavailable("gone"))
    leaving.cancel()
    await asyncio.wait([leaving], timeout=WAIT_SECONDS)
    assert leaving.cancelled()
    assert sum(received(*engines)) == 1


async def test_a_request_that_its_worker_refuses_is_done_by_another(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    ill, well = [await start_engine(pooling=EMBEDDER) for _ in range(2)]
    running = await start_router(ill.address, well.address)
    for failure in (Unavailable("draining"), Internal("a fault", reason=ENGINE_FAULT), Overloaded("its queue is full")):
        ill.pooling.failure = failure
        for _ in range(2):
            assert (await pool(running, request([5]))).outputs
    assert received(ill)[0] >= 3
    ill.pooling.failure = well.pooling.failure = InvalidRequest("too long", parameter="inputs")
    before = sum(received(ill, well))
    with pytest.raises(InvalidRequest, match="too long"):
        await pool(running, request([5]))
    assert sum(received(ill, well)) == before + 1


async def test_a_request_that_fails_everywhere_ends(start_engine: StartEngine, start_router: StartRouter) -> None:
    engines = [await start_engine(pooling=EMBEDDER) for _ in range(4)]
    for engine in engines:
        engine.pooling.failure = Internal("a fault", reason=ENGINE_FAULT)
    running = await start_router(*(engine.address for engine in engines))
    with pytest.raises(Internal, match="a fault"):
        await pool(running, request([5]))
    assert sum(received(*engines)) == 3


async def test_a_model_of_the_other_runner_is_refused_with_what_serves_it(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """One router has models of both kinds."""
    embedder, writer = (
        await start_engine(pooling=EMBEDDER, models=("embedder",)),
        await start_engine(models=("writer",)),
    )
    running = await start_router(embedder.address, writer.address)
    with pytest.raises(InvalidRequest, match="'writer' is served with --runner generate"):
        await pool(running, request([5], model="writer"))
    with pytest.raises(NotFound, match="embedder, writer"):
        await pool(running, request([5], model="none"))
    assert (await pool(running, request([5]))).outputs  # without a name, the only pooling model
    async with running.client.session() as session:
        wrong = await (await session.start(1, generation([1], 2, model="embedder"))).wait_ended()
        assert isinstance(wrong.error, InvalidRequest)
        assert "'embedder' is served with --runner pooling" in wrong.error.message
        assert (await (await session.start(2, generation([1], 2))).wait_ended()).error is None


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
async def test_requests_of_a_worker_that_dies_or_freezes_are_done_by_another(
    sign: signal.Signals, start_engine: StartEngine, start_router: StartRouter
) -> None:
    healthy = await start_engine(pooling=EMBEDDER)
    healthy.pooling.hold()
    with engine_process(free_port(), "--pooling", "--held") as victim:
        running = await start_router(healthy.address, victim.address)
        jobs = [begin(pool(running, request([number]))) for number in range(8)]
        workers = running.router.registry.workers
        await eventually(lambda: [worker.load.inflight_requests for worker in workers] == [4, 4], "not placed")
        victim.signal(sign)
        healthy.pooling.release()
        answers = await asyncio.gather(*jobs)
        for number, answer in enumerate(answers):
            assert list(memoryview(answer.outputs[0].data).cast("f")) == pytest.approx(embedding([number]))
        victim.signal(signal.SIGCONT)


@pytest.mark.slow
async def test_new_requests_wait_for_a_worker_that_restarts(start_router: StartRouter) -> None:
    port = free_port()
    with engine_process(port, "--pooling") as victim:
        running = await start_router(victim.address)
        victim.kill()
        await running.client.wait_state(victim.address, router_pb2.WORKER_STATE_UNREACHABLE)
        waiting = begin(pool(running, request([5])))
        await eventually(lambda: running.router.core.pooling.waiting.waiting == 1, "it does not wait")
    with engine_process(port, "--pooling"):
        assert (await waiting).outputs
