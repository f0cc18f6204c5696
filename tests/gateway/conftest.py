"""Gateways: one per test module, whose fake engine answers A, H, O, V, ] to the prompt A; some with fake routers."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from quire.rpc.server import GrpcServer
from tests.support.fake_router import FakeRouter
from tests.support.gateway_stack import Gateway, GatewayStack, gateway_before, running_gateway, running_tokenizer
from tests.support.waiting import eventually


@dataclass
class Replicas:
    """A gateway in front of several fake routers."""

    gateway: Gateway
    routers: list[FakeRouter]

    @property
    def moved(self) -> int:
        return self.gateway.context.statistics.streams_moved

    @property
    def started(self) -> list[int]:
        """Number of generations that each router was given."""
        return [len(router.state.started) for router in self.routers]

    def owner(self) -> tuple[FakeRouter, FakeRouter]:
        """(the router that has live streams, the other one)."""
        first, second = self.routers
        return (first, second) if first.live else (second, first)


StartReplicas = Callable[..., AbstractAsyncContextManager[Replicas]]


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizer")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def gateway(tokenizer_folder: Path) -> AsyncIterator[GatewayStack]:
    async with running_gateway(tokenizer_folder, enable_request_id_headers=True) as stack:
        yield stack
        assert stack.context.pipeline.num_live == 0
        assert stack.context.pipeline.router_streams.num_placed == 0
        assert stack.context.statistics.num_live == 0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tokenizer(tokenizer_folder: Path) -> AsyncIterator[GrpcServer]:
    async with running_tokenizer(tokenizer_folder) as server:
        yield server


@pytest.fixture
def start_replicas(tokenizer: GrpcServer) -> StartReplicas:
    """Starts `count` fake routers and a gateway in front of them; all end with the context."""

    @contextlib.asynccontextmanager
    async def start(count: int = 2, **options: Any) -> AsyncIterator[Replicas]:
        async with contextlib.AsyncExitStack() as stack:
            routers = []
            for _ in range(count):
                routers.append(await FakeRouter().start())
                stack.push_async_callback(routers[-1].close)
            addresses = [router.address for router in routers]
            gateway = await stack.enter_async_context(
                gateway_before(addresses, [f"127.0.0.1:{tokenizer.port}"], **options)
            )
            sessions = gateway.context.pipeline.router_streams.routers
            await eventually(lambda: all(session.connected for session in sessions), "a router is not reached")
            yield Replicas(gateway, routers)
            assert gateway.context.pipeline.num_live == 0
            assert gateway.context.pipeline.router_streams.num_placed == 0
            assert gateway.context.statistics.num_live == 0

    return start
