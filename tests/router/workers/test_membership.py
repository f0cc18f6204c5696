"""Where workers come from: a static list, DNS, or registration with a lease."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc
import pytest

from quire.errors import InvalidRequest, NotFound
from quire.options.server import RpcSecurityOptions
from quire.rpc.discovery import DnsSource, join_address, resolve_host, split_address
from quire.rpc.status import from_rpc_error
from quire.v1 import router_pb2
from router.workers.leases import Leases
from router.workers.registry import WorkerRegistry
from tests.router.conftest import Running, StartEngine, StartRouter
from tests.support.fake_engine import FakeOptions, expected_tokens
from tests.support.router_client import generation
from tests.support.waiting import WAIT_SECONDS, eventually


class Clock:
    """A clock that moves only when told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Names:
    """A resolver whose answer can be changed."""

    def __init__(self, *hosts: str) -> None:
        self.answer: Sequence[str] | OSError = hosts
        self.asked: list[str] = []
        self.again = asyncio.Event()

    async def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        self.again.set()
        if isinstance(self.answer, OSError):
            raise self.answer
        return self.answer

    async def wait_asked(self, times: int) -> None:
        """Waits until it has been asked this many more times."""
        for _ in range(times):
            self.again.clear()
            await self.again.wait()


def test_leases_end_unless_renewed() -> None:
    clock = Clock()
    leases = Leases(10.0, clock)
    kept, dropped = leases.grant("a:1"), leases.grant("b:1")
    clock.now += 9
    leases.renew(kept)
    clock.now += 2
    assert leases.addresses() == {"a:1"}
    with pytest.raises(NotFound, match="register again"):
        leases.renew(dropped)


def test_registering_again_replaces_the_lease() -> None:
    leases = Leases(10.0, Clock())
    first = leases.grant("a:1")
    second = leases.grant("a:1")
    leases.renew(second)
    with pytest.raises(NotFound):
        leases.renew(first)


@pytest.mark.parametrize(
    ("address", "parts"),
    [("engine:50053", ("engine", 50053)), ("10.0.0.1:1", ("10.0.0.1", 1)), ("[::1]:80", ("::1", 80))],
)
def test_addresses(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts
    assert join_address(*parts) == address


@pytest.mark.parametrize(
    "address", ["", "engine", "engine:", ":1", "engine:0", "engine:65536", "http://x:1", "a b:1", "a..b:1"]
)
def test_malformed_addresses(address: str) -> None:
    with pytest.raises(ValueError, match="host:port"):
        split_address(address)


async def register(running: Running, address: str) -> router_pb2.RegisterWorkerResponse:
    request = router_pb2.RegisterWorkerRequest(address=address)
    return await running.client.stub.RegisterWorker(request, timeout=WAIT_SECONDS)


async def renew(running: Running, lease_id: str) -> router_pb2.HeartbeatResponse:
    return await running.client.stub.Heartbeat(router_pb2.HeartbeatRequest(lease_id=lease_id), timeout=WAIT_SECONDS)


async def test_a_registered_worker_serves_until_its_lease_ends(
    start_engine: StartEngine, start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, clock = await start_engine(), Clock()
    running = await start_router(worker_lease_seconds=8.0)
    monkeypatch.setattr(running.router._registrations._leases, "_clock", clock)
    lease = await register(running, engine.address)
    assert lease.lease_ms == 8000
    await running.client.wait_ready(engine.address)
    for _ in range(3):  # together longer than one lease
        assert (await renew(running, lease.lease_id)).lease_ms == 8000
        clock.now += 5
    assert await running.client.generate(generation([1], 3)) == expected_tokens([1], 3)
    async with running.client.session() as session:
        output = await session.start(1, generation([2], 200))
        await output.wait_tokens()
        engine.options = FakeOptions(silent=True)  # keeps the request from finishing too early
        clock.now += 5  # no renewal any more: it gets nothing new, and what runs on it finishes
        worker = await running.client.wait_state(engine.address, router_pb2.WORKER_STATE_DRAINING)
        assert "no longer announced" in worker.reason
        engine.options = FakeOptions()
        assert (await output.wait_ended()).tokens[0] == expected_tokens([2], 200)
    await eventually(lambda: not running.router.registry.workers)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await renew(running, lease.lease_id)
    assert isinstance(from_rpc_error(failure.value), NotFound)
    await register(running, engine.address)
    await running.client.wait_ready(engine.address)


async def test_a_malformed_registration_is_refused(start_router: StartRouter) -> None:
    running = await start_router()
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await register(running, "nowhere")
    error = from_rpc_error(failure.value)
    assert isinstance(error, InvalidRequest)
    assert error.parameter == "address"


async def test_dns_follows_the_records(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine()
    port = engine.address.rpartition(":")[2]
    names = Names("127.0.0.1")
    running = await start_router(worker_dns=(f"engines.test:{port}",), worker_dns_interval_seconds=0.1, resolve=names)
    await running.client.wait_ready(engine.address)
    names.answer = ("127.0.0.1", "127.0.0.9")
    other = f"127.0.0.9:{port}"
    worker = await running.client.wait_state(other, router_pb2.WORKER_STATE_STARTING)
    assert not worker.HasField("model_info")
    names.answer = OSError("the name server is away")
    asked = len(names.asked)
    await eventually(lambda: len(names.asked) > asked + 2)
    assert set(await running.client.workers()) == {engine.address, other}
    names.answer = ("127.0.0.1",)
    await eventually(lambda: [w.address for w in running.router.registry.workers] == [engine.address])
    assert set(names.asked) == {"engines.test"}


async def test_a_partial_answer_costs_no_worker_its_place(start_engine: StartEngine, start_router: StartRouter) -> None:
    """The router also keeps what it knows of the worker's cache."""
    engine = await start_engine()
    port = engine.address.rpartition(":")[2]
    names = Names("127.0.0.1", "127.0.0.9")
    running = await start_router(worker_dns=(f"engines.test:{port}",), worker_dns_interval_seconds=0.1, resolve=names)
    await running.client.wait_ready(engine.address)
    (worker,) = (worker for worker in running.router.registry.workers if worker.address == engine.address)
    for _ in range(3):
        names.answer = ("127.0.0.9",)
        await names.wait_asked(2)
        assert worker in running.router.registry.workers
        assert worker.ready
        names.answer = ("127.0.0.1", "127.0.0.9")
        await names.wait_asked(2)
    names.answer = ("127.0.0.9",)
    await eventually(lambda: worker not in running.router.registry.workers)


async def test_a_machine_with_addresses_of_both_versions_is_one_worker(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine()
    port = engine.address.rpartition(":")[2]
    names = Names("::1", "127.0.0.1")
    running = await start_router(worker_dns=(f"engines.test:{port}",), worker_dns_interval_seconds=0.1, resolve=names)
    await running.client.wait_ready(engine.address)
    assert set(await running.client.workers()) == {engine.address}
    names.answer = ("::1",)
    await eventually(lambda: {worker.address for worker in running.router.registry.workers} == {f"[::1]:{port}"})


async def test_the_systems_resolver_answers() -> None:
    assert "127.0.0.1" in await resolve_host("localhost")


async def test_a_worker_announced_twice_is_one_and_stays_until_both_let_go(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine()
    running = await start_router()
    registry: WorkerRegistry = running.router.registry
    registry.announce("a", [engine.address])
    registry.announce("b", [engine.address])
    await running.client.wait_ready(engine.address)
    registry.announce("a", [])
    assert (await running.client.workers())[engine.address].state == router_pb2.WORKER_STATE_READY
    registry.announce("b", [])
    assert not registry.workers


async def test_a_worker_that_returns_before_it_is_done_is_kept(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine()
    running = await start_router()
    registry = running.router.registry
    registry.announce("dns", [engine.address])
    await running.client.wait_ready(engine.address)
    async with running.client.session() as session:
        await (await session.start(1, generation([1]))).wait_tokens()
        (worker,) = registry.workers
        registry.announce("dns", [])
        assert worker.retired
        registry.announce("dns", [engine.address])
        assert list(registry.workers) == [worker]
        assert worker.ready


async def test_the_token_of_the_deployment_is_asked_for_and_shown(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    security = RpcSecurityOptions(grpc_token="correct horse")
    engine = await start_engine(security)
    running = await start_router(engine.address, security=security)
    assert await running.client.generate(generation([1], 3)) == expected_tokens([1], 3)
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await register(running, "127.0.0.1:1")
    assert failure.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_a_worker_that_asks_for_another_token_says_why_it_is_not_used(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine(RpcSecurityOptions(grpc_token="another"))
    running = await start_router()
    running.router.registry.announce("test", [engine.address])
    await eventually(lambda: "--grpc-token" in next(iter(running.router.registry.workers)).condition.reason)


async def test_dns_names_are_checked_at_the_start() -> None:
    registry = WorkerRegistry(lambda address: pytest.fail("no worker"))
    with pytest.raises(ValueError, match="host:port"):
        DnsSource("--worker-dns", "engines", registry.announce, 1.0, Names())
