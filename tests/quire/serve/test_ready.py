"""What a stack reports once it is ready, where some services run elsewhere and may be down."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions
from quire.serve.layout import choose_layout
from quire.serve.ports import HeldPorts, free_ports
from quire.serve.ready import summary
from router.app import Router
from tests.quire.serve.test_layout import stack_options
from tests.support.fake_engine import FakeEngine, FakeOptions
from tests.support.gateway_stack import SECURITY, running_tokenizer
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def running_router(*workers: str) -> AsyncIterator[str]:
    router = Router(RouterOptions(workers=workers), GrpcServerOptions(), SECURITY)
    await router.start()
    await eventually(lambda: router.registry.num_ready == len(workers))
    yield f"127.0.0.1:{router.server.port}"
    await router.close()


async def told(routers: tuple[str, ...], tokenizers: tuple[str, ...]) -> str:
    options = stack_options(router_address=routers, tokenizer_address=tokenizers)
    options = dataclasses.replace(options, security=SECURITY)
    with HeldPorts() as ports:
        return await summary(options, choose_layout(options, ports), 2.0)


async def test_replicas_that_are_down_are_passed_over(tmp_path: Path) -> None:
    dead = f"127.0.0.1:{free_ports(1)[0]}"
    engine = await FakeEngine(FakeOptions(), GrpcServerOptions()).start()
    async with (
        running_tokenizer(tmp_path) as tokenizer,
        running_router() as idle,
        running_router(f"127.0.0.1:{engine.rpc.port}") as router,
    ):
        text = await told((dead, idle, router), (dead, f"127.0.0.1:{tokenizer.port}"))
        assert "is ready after 2.0 s" in text
        assert f"--router-address {router}" in text
        assert "no engine worker is ready" in await told((idle,), (dead,))
    await engine.close()
