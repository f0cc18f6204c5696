"""A worker that registers with routers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence

import grpc
import pytest

from engine_svc.service.registration import Place, keep_registered
from quire.options.server import RpcSecurityOptions
from quire.rpc import peers
from quire.v1 import router_pb2, router_pb2_grpc
from tests.support.engine_process import free_port
from tests.support.waiting import eventually

TIMEOUT = 60.0


class Router(router_pb2_grpc.RouterServiceServicer):
    """A router that grants leases, and forgets each after two heartbeats."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self.beats = 0
        self.twice = asyncio.Event()

    async def RegisterWorker(
        self, request: router_pb2.RegisterWorkerRequest, context: grpc.aio.ServicerContext
    ) -> router_pb2.RegisterWorkerResponse:
        self.addresses.append(request.address)
        self.beats = 0
        if len(self.addresses) == 2:
            self.twice.set()
        return router_pb2.RegisterWorkerResponse(lease_id=f"lease-{len(self.addresses)}", lease_ms=150)

    async def Heartbeat(
        self, request: router_pb2.HeartbeatRequest, context: grpc.aio.ServicerContext
    ) -> router_pb2.HeartbeatResponse:
        self.beats += 1
        if request.lease_id != f"lease-{len(self.addresses)}" or self.beats > 2:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such lease")
        return router_pb2.HeartbeatResponse(lease_ms=150)


@contextlib.asynccontextmanager
async def listening(address: str) -> AsyncIterator[Router]:
    router, server = Router(), grpc.aio.server()
    router_pb2_grpc.add_RouterServiceServicer_to_server(router, server)
    server.add_insecure_port(address)
    await server.start()
    try:
        yield router
    finally:
        await server.stop(grace=0)


async def test_registers_again_when_the_router_forgets() -> None:
    port = free_port()
    job = asyncio.create_task(keep_registered([f"127.0.0.1:{port}"], Place("here", 1), RpcSecurityOptions()))
    await asyncio.sleep(0.1)  # the router starts after the worker
    async with listening(f"127.0.0.1:{port}") as router:
        await asyncio.wait_for(router.twice.wait(), TIMEOUT)
        assert router.addresses == ["here:1", "here:1"]
        job.cancel()


async def test_every_address_behind_a_name_is_a_router(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "LOOK_UP_SECONDS", 0.02)
    port, found = free_port(), ["127.0.0.1"]

    async def resolve(host: str) -> Sequence[str]:
        assert host == "routers.test"
        return found

    async with listening(f"127.0.0.1:{port}") as first, listening(f"127.0.0.2:{port}") as second:
        job = asyncio.create_task(
            keep_registered([f"routers.test:{port}"], Place("here", 1), RpcSecurityOptions(), resolve)
        )
        await eventually(lambda: first.addresses)
        assert not second.addresses
        found.append("127.0.0.2")
        await eventually(lambda: second.addresses == ["here:1"])
        found.remove("127.0.0.1")
        await asyncio.wait_for(second.twice.wait(), TIMEOUT)
        heard = len(first.addresses)
        second.twice.clear()
        second.addresses.clear()
        await asyncio.wait_for(second.twice.wait(), TIMEOUT)
        assert len(first.addresses) == heard
        job.cancel()


def test_where_a_router_reaches_it() -> None:
    assert Place("10.0.0.7", 5).seen_from("router:1") == "10.0.0.7:5"
    assert Place("::1", 5).seen_from("router:1") == "[::1]:5"
    assert Place("0.0.0.0", 5).seen_from("127.0.0.1:1") == "127.0.0.1:5"
    assert Place("0.0.0.0", 5, has_tls=True).seen_from("127.0.0.1:1") == f"{socket.gethostname()}:5"
    assert Place("0.0.0.0", 5, "a:1").seen_from("127.0.0.1:1") == "a:1"
    with pytest.raises(OSError):
        Place("0.0.0.0", 5).seen_from("nowhere.invalid:1")
