"""A gateway with an admin port over real sockets: real router, real engines over fake executors, all in one process."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from gateway.main import make_admin_server
from quire.options.admin import AdminOptions
from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions
from router.app import Router
from tests.support.engine_server import RunningEngine, running_engine
from tests.support.fake_executor import FakeExecutor
from tests.support.gateway_stack import SECURITY, Gateway, gateway_before, running_tokenizer, serving
from tests.support.waiting import eventually

STEP_SECONDS = 0.002


@dataclass
class AdminStack:
    """The whole stack, for tests to talk to and inspect."""

    gateway: Gateway
    admin: httpx.AsyncClient
    admin_port: int
    engines: list[RunningEngine]

    @property
    def workers(self) -> list[str]:
        return [engine.address for engine in self.engines]

    async def ask(self, path: str, expected: int = 200, method: str = "POST", **arguments: Any) -> dict[str, Any]:
        """Sends a request to the admin port and returns its answer."""
        response = await self.admin.request(method, path, **arguments)
        assert response.status_code == expected, response.text
        return dict(response.json())


@contextlib.asynccontextmanager
async def running_admin_stack(
    folder: Path, engines: int = 2, engine_options: Any = MappingProxyType({}), **options: Any
) -> AsyncIterator[AdminStack]:
    """The options are the gateway's."""
    async with contextlib.AsyncExitStack() as stack:
        running = [
            await stack.enter_async_context(
                running_engine(FakeExecutor(step_seconds=STEP_SECONDS), enable_sleep_mode=True, **engine_options)
            )
            for _ in range(engines)
        ]
        addresses = tuple(engine.address for engine in running)
        router = Router(RouterOptions(workers=addresses), GrpcServerOptions(), SECURITY)
        await router.start()
        stack.push_async_callback(router.close)
        tokenizer = await stack.enter_async_context(running_tokenizer(folder))
        gateway = await stack.enter_async_context(
            gateway_before([f"127.0.0.1:{router.server.port}"], [f"127.0.0.1:{tokenizer.port}"], **options)
        )
        port = await stack.enter_async_context(serving(make_admin_server(gateway.context)))
        keys = gateway.context.options.admin.admin_api_key
        headers = {"authorization": f"Bearer {keys[0]}"} if keys else {}
        admin = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60, headers=headers)
        )
        fleet = gateway.context.fleet  # an engine takes requests before it has told its state for the first time
        await eventually(lambda: sum(each.HasField("load") for each in fleet.ready) == engines, "not all become ready")
        yield AdminStack(gateway, admin, port, running)


def admin_options(*keys: str) -> AdminOptions:
    """Options for an admin port that the test binds itself."""
    return AdminOptions(admin_port=1, admin_api_key=keys)
