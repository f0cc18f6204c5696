"""Operators' commands through a real router to real engines with the fake executor."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from quire.errors import PAUSED, Conflict, NotFound, QuireError, Unavailable
from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.rpc.channel import open_channel
from quire.rpc.status import from_request_error, from_rpc_error
from quire.sleep import Leaving
from quire.v1 import admin_pb2, admin_pb2_grpc, router_pb2
from router.app import Router
from tests.router.conftest import Running, StartRouter, nothing_is_left
from tests.support.engine_client import TIMEOUT, expected, generation
from tests.support.engine_server import RunningEngine, running_engine
from tests.support.fake_executor import FakeExecutor
from tests.support.router_client import connect
from tests.support.waiting import eventually

KEEP = admin_pb2.LEAVING_KEEP
PROMPT = list(range(40))
PAUSED_STATE, READY, DRAINING = (
    router_pb2.WORKER_STATE_PAUSED, router_pb2.WORKER_STATE_READY, router_pb2.WORKER_STATE_DRAINING,
)  # fmt: skip


@dataclass
class Fleet:
    """Two engines, the router in front of them, and its clients."""

    engines: list[RunningEngine]
    running: Running
    stub: admin_pb2_grpc.RouterAdminServiceStub

    @property
    def addresses(self) -> list[str]:
        return [engine.address for engine in self.engines]

    async def ask(self, *workers: str, **command: Any) -> dict[str, admin_pb2.AdminOutcome | QuireError]:
        request = admin_pb2.RouterAdminServiceAdministerRequest(
            command=admin_pb2.AdminCommand(**command), workers=workers
        )
        try:
            answer = await self.stub.Administer(request, timeout=TIMEOUT)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        return {
            each.address: each.outcome if each.HasField("outcome") else from_request_error(each.error)
            for each in answer.workers
        }

    async def states(self) -> list[int]:
        workers = await self.running.client.workers()
        return [workers[address].state for address in self.addresses]

    async def generate(self, count: int = 8) -> list[int]:
        return await self.running.client.generate(generation(PROMPT, max_tokens=count))

    def served(self) -> list[int]:
        """Number of steps that each engine has run."""
        return [engine.worker.loop.load().step for engine in self.engines]


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    """The router closes before the engines, so that it does not notice their loss."""
    async with contextlib.AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(running_engine(FakeExecutor(step_seconds=0.002), enable_sleep_mode=True))
            for _ in range(2)
        ]
        addresses = tuple(engine.address for engine in engines)
        security = RpcSecurityOptions()
        router = Router(RouterOptions(workers=addresses), GrpcServerOptions(), security)
        await router.start()
        stack.push_async_callback(router.close)
        client = await stack.enter_async_context(connect(router.server.port))
        await client.wait_ready(*addresses)
        channel = await stack.enter_async_context(open_channel(f"127.0.0.1:{router.server.port}", security))
        yield Fleet(engines, Running(router, client), admin_pb2_grpc.RouterAdminServiceStub(channel))
        await nothing_is_left(router)


async def test_a_drained_worker_gets_nothing_new(fleet: Fleet) -> None:
    first, second = fleet.addresses
    for drained in (0, 1):
        address = fleet.addresses[drained]
        assert list(await fleet.ask(address, drain=admin_pb2.Drain())) == [address]
        before = fleet.served()
        for _ in range(4):
            assert await fleet.generate() == expected(PROMPT, 8)
        after = fleet.served()
        assert (after[drained] > before[drained], after[1 - drained] > before[1 - drained]) == (False, True)
        assert (await fleet.states())[drained] == DRAINING
        await fleet.ask(undrain=admin_pb2.Undrain())
        assert await fleet.states() == [READY, READY]
    assert first != second


@pytest.mark.parametrize("level", [None, 1])
async def test_a_worker_that_rests_gets_nothing_and_keeps_what_it_has(fleet: Fleet, level: int | None) -> None:
    first, _ = fleet.addresses
    async with fleet.running.client.session() as session:
        outputs = [await session.start(number, generation(PROMPT, max_tokens=150)) for number in range(4)]
        for output in outputs:
            await output.wait_tokens()
        if level is None:
            told = await fleet.ask(first, pause=admin_pb2.Pause(leaving=KEEP))
        else:
            told = await fleet.ask(first, sleep=admin_pb2.Sleep(level=level, leaving=KEEP))
        assert list(told) == [first]
        assert await fleet.states() == [PAUSED_STATE, READY]
        assert await fleet.generate() == expected(PROMPT, 8)
        workers = await fleet.running.client.workers()
        assert ("level 1" in workers[first].reason) == (level == 1)
        await fleet.ask(first, wake_up=admin_pb2.WakeUp())
        for output in outputs:
            assert (await output.wait_ended()).tokens[0] == expected(PROMPT, 150)
        assert await fleet.states() == [READY, READY]


async def test_a_rest_does_not_make_a_worker_slow(fleet: Fleet) -> None:
    first, second = fleet.addresses
    await fleet.ask(second, drain=admin_pb2.Drain())  # all requests go to the first worker
    (record,) = (worker.ejection for worker in fleet.running.router.registry.workers if worker.address == first)
    await fleet.generate()
    known = record.tpot
    assert known > 0
    async with fleet.running.client.session() as session:
        output = await (await session.start(1, generation(PROMPT, max_tokens=50))).wait_tokens()
        await fleet.ask(first, pause=admin_pb2.Pause(leaving=KEEP))
        await fleet.ask(first, resume=admin_pb2.Resume())
        await output.wait_ended()
    assert record.tpot == known
    await fleet.generate()
    assert record.tpot != known


async def test_where_all_rest_new_requests_are_refused_at_once(fleet: Fleet) -> None:
    await fleet.ask(pause=admin_pb2.Pause(leaving=KEEP))
    assert await fleet.states() == [PAUSED_STATE, PAUSED_STATE]
    async with fleet.running.client.session() as session:
        output = await (await session.start(1, generation(PROMPT, max_tokens=8))).wait_ended()
        assert isinstance(output.error, Unavailable)
        assert "it is paused until /resume" in output.error.message
        await fleet.ask(fleet.addresses[1], resume=admin_pb2.Resume())
        output = await (await session.start(2, generation(PROMPT, max_tokens=8))).wait_ended()
        assert output.tokens[0] == expected(PROMPT, 8)


async def test_a_worker_that_refuses_before_the_router_knows_costs_nobody_a_request(fleet: Fleet) -> None:
    """Another router has paused the worker: its requests go elsewhere, and none fails."""
    await fleet.engines[0].worker.administration.pause(Leaving.KEEP, 0.0, clears_cache=False)
    for _ in range(6):
        assert await fleet.generate(3) == expected(PROMPT, 3)
    await fleet.running.client.wait_state(fleet.addresses[0], PAUSED_STATE)


async def test_a_worker_that_cannot_is_named(fleet: Fleet) -> None:
    first, second = fleet.addresses
    await fleet.ask(first, sleep=admin_pb2.Sleep(level=1, leaving=KEEP))
    told = await fleet.ask(resume=admin_pb2.Resume())
    error = told[first]
    assert isinstance(error, Conflict)
    assert error.message.startswith(f"Engine worker {first}: ")
    assert isinstance(told[second], admin_pb2.AdminOutcome)
    with pytest.raises(NotFound, match="no worker 'elsewhere:1'"):
        await fleet.ask("elsewhere:1", first, resume=admin_pb2.Resume())
    assert {address: outcome.status.is_paused for address, outcome in (await fleet.ask()).items()} == {
        first: True, second: False,
    }  # fmt: skip


async def test_one_that_is_gone_is_named(fleet: Fleet) -> None:
    first, second = fleet.addresses
    await fleet.engines[0].server.server.stop(grace=None)
    told = await fleet.ask(reset_prefix_cache=admin_pb2.ResetPrefixCache())
    error = told[first]
    assert isinstance(error, QuireError)
    assert first in error.message
    assert isinstance(told[second], admin_pb2.AdminOutcome)


async def test_a_reset_empties_the_index(fleet: Fleet) -> None:
    first, _ = fleet.addresses
    await fleet.ask(fleet.addresses[1], drain=admin_pb2.Drain())
    await fleet.generate()
    worker = next(each for each in fleet.running.router.registry.workers if each.address == first)
    await eventually(lambda: worker.blocks.num_blocks > 0, "nothing is cached")
    await fleet.ask(reset_prefix_cache=admin_pb2.ResetPrefixCache())
    await eventually(lambda: worker.blocks.num_blocks == 0, "the index still has blocks")


async def test_a_router_without_workers_says_so(start_router: StartRouter) -> None:
    running = await start_router()
    async with open_channel(f"127.0.0.1:{running.router.server.port}", RpcSecurityOptions()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await admin_pb2_grpc.RouterAdminServiceStub(channel).Administer(
                admin_pb2.RouterAdminServiceAdministerRequest(), timeout=TIMEOUT
            )
    assert isinstance(from_rpc_error(caught.value), Unavailable)
    assert PAUSED not in str(caught.value)


async def test_it_needs_the_services_token(start_router: StartRouter) -> None:
    """The admin service requires the shared token like all calls between services."""
    security = RpcSecurityOptions(grpc_token="secret")
    running = await start_router(security=security)
    async with open_channel(f"127.0.0.1:{running.router.server.port}", RpcSecurityOptions()) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await admin_pb2_grpc.RouterAdminServiceStub(channel).Administer(
                admin_pb2.RouterAdminServiceAdministerRequest(), timeout=TIMEOUT
            )
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
