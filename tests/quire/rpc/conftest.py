"""A small real server for tests of the RPC layer: the fake engine, closed after each test."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from tests.support.fake_engine import FakeEngine, FakeOptions

StartServer = Callable[..., Awaitable[FakeEngine]]


@pytest.fixture
async def start_server() -> AsyncIterator[StartServer]:
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            security: RpcSecurityOptions | None = None,
            options: FakeOptions | None = None,
            server: GrpcServerOptions | None = None,
        ) -> FakeEngine:
            engine = FakeEngine(options, server, security)
            stack.push_async_callback(engine.close)
            return await engine.start()

        yield start
