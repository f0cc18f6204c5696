"""Routers and workers for tests, closed after each."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest

from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.rpc.discovery import Resolver, resolve_host
from router.app import Router
from tests.support.fake_engine import FakeEngine, FakeOptions
from tests.support.router_client import RouterClient, connect
from tests.support.waiting import WAIT_SECONDS, eventually

StartEngine = Callable[..., Awaitable[FakeEngine]]


@dataclass
class Running:
    """A router and a client of it."""

    router: Router
    client: RouterClient


StartRouter = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start_engine() -> AsyncIterator[StartEngine]:
    async with contextlib.AsyncExitStack() as stack:

        async def start(security: RpcSecurityOptions | None = None, **options: Any) -> FakeEngine:
            engine = await FakeEngine(FakeOptions(**options), GrpcServerOptions(), security).start()
            stack.push_async_callback(engine.close)
            return engine

        yield start


@pytest.fixture
async def start_router() -> AsyncIterator[StartRouter]:
    """Starts routers; afterwards asserts that all their tables are empty."""
    running: list[Router] = []
    async with contextlib.AsyncExitStack() as stack:

        async def start(
            *workers: str,
            resolve: Resolver = resolve_host,
            security: RpcSecurityOptions = RpcSecurityOptions(),
            **options: Any,
        ) -> Running:
            router = Router(RouterOptions(workers=workers, **options), GrpcServerOptions(), security, resolve)
            await router.start()
            running.append(router)
            stack.push_async_callback(router.close)
            client = await stack.enter_async_context(connect(router.server.port, security))
            await client.wait_ready(*workers)
            return Running(router, client)

        yield start
        for router in running:
            await nothing_is_left(router)


async def nothing_is_left(router: Router) -> None:
    """Waits until the router's tables are empty; advances the clock by which the index stops expecting blocks."""
    clock = router.index._clock
    router.index._clock = lambda: clock() + WAIT_SECONDS
    await eventually(lambda: not leaked(router), f"leaked: {leaked(router)}")


def leaked(router: Router) -> list[str]:
    """What is left over in the router's tables."""
    workers = router.registry.workers
    left = {
        "requests": len(router.table),
        "streams": sum(len(session.streams) for session in router.dispatcher.sessions),
        "pooling": len(router.core.pooling),
        "waiting for pooling": router.core.pooling.waiting.waiting,
        "sessions": len(router.dispatcher.sessions),
        "waiting": router.dispatcher.waiting.waiting,
        "retries": router.dispatcher.retries_in_flight,
        "expected blocks": len(router.index.expected),
        "in flight": sum(worker.load.inflight_requests for worker in workers),
        "own load": sum(
            worker.load.own_sequences + worker.load.own_prefill_tokens + worker.load.own_prompt_tokens
            for worker in workers
        ),
    }
    return [f"{name}: {count}" for name, count in left.items() if count]
