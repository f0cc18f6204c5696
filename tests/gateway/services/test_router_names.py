"""Routers that are found by a host name: every address behind it is one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from quire.rpc import peers
from quire.rpc.server import GrpcServer
from tests.support.fake_router import FakeRouter
from tests.support.gateway_stack import gateway_before
from tests.support.stream_reader import Reader
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

BODY = {"model": "fake", "prompt": "A", "max_tokens": 6}


async def test_routers_come_and_go(
    tokenizer_folder: Path, tokenizer: GrpcServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream ends at the router that it began at, even if the name no longer resolves to that one."""
    loop, found = asyncio.get_running_loop(), ["127.0.0.1"]
    system = loop.getaddrinfo

    async def getaddrinfo(host: str, *arguments: Any, **options: Any) -> list[Any]:
        if host != "routers.test":
            return await system(host, *arguments, **options)
        return [(0, 0, 0, "", (each, 0)) for each in found]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(peers, "LOOK_UP_SECONDS", 0.02)
    first = await FakeRouter().start()
    second = await FakeRouter("127.0.0.2", first.rpc.port).start()
    names, tokenizers = [f"routers.test:{first.rpc.port}"], [f"127.0.0.1:{tokenizer.port}"]
    async with gateway_before(names, tokenizers) as gateway:
        routers = gateway.context.pipeline.router_streams.routers
        undisturbed = await Reader(gateway, "/v1/completions", BODY).result()
        first.state.hold = 2
        running = Reader(gateway, "/v1/completions", BODY)
        await eventually(lambda: first.holding)

        found[:] = ["127.0.0.2"]
        await eventually(lambda: [router.retired for router in routers] == [True, False])
        await eventually(lambda: all(router.up for router in routers))
        for _ in range(2):
            assert await Reader(gateway, "/v1/completions", BODY).result() == undisturbed
        assert (len(first.state.started), len(second.state.started)) == (2, 2)

        first.live[0].hold = None
        assert await running.result() == undisturbed
        await eventually(lambda: [router.address for router in routers] == [second.address])
        assert len(gateway.context.fleet.ready) == 1

        found[:] = ["127.0.0.1", "127.0.0.2"]
        await eventually(lambda: len(routers) == 2 and all(router.up for router in routers))
        first.state.hold = None
        await second.close()
        assert await Reader(gateway, "/v1/completions", BODY).result() == undisturbed
    await first.close()
