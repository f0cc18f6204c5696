"""A network that swallows everything between gateway and routers, in the middle of many streams."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from quire.options.model import ModelOptions
from quire.options.router import RouterOptions
from quire.options.server import GrpcServerOptions
from router.app import Router
from tests.router.conftest import nothing_is_left
from tests.support.engine_client import wait_free
from tests.support.engine_server import RunningEngine, running_engine
from tests.support.fake_executor import FakeExecutor
from tests.support.gateway_stack import SECURITY, Gateway, gateway_before, running_tokenizer
from tests.support.stream_reader import Reader
from tests.support.tcp_proxy import TcpProxy, proxy_to
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

NUM_STREAMS = 12
VOCABULARY = 1000


@dataclass
class Divided:
    """A gateway, with a network between it and each of two routers, which have one worker."""

    gateway: Gateway
    networks: list[TcpProxy]
    routers: list[Router]
    engine: RunningEngine

    def read(self) -> list[Reader]:
        """Streams of different prompts, spread over the routers by their sessions."""
        body = {"max_tokens": 60, "temperature": 0, "return_token_ids": True}
        return [
            Reader(self.gateway, "/v1/completions", body | {"prompt": [number + 1] * 20, "user": f"{number}"})
            for number in range(NUM_STREAMS)
        ]

    async def read_to_the_middle(self) -> list[Reader]:
        readers = self.read()
        await eventually(lambda: all(reader.tokens for reader in readers), "the streams do not begin")
        assert [len(router.table) > 0 for router in self.routers] == [True, True]
        return readers


@pytest.fixture
async def divided(tmp_path: Path) -> AsyncIterator[Divided]:
    async with contextlib.AsyncExitStack() as stack:
        model = ModelOptions(model=str(tmp_path), served_model_name=("fake",))
        executor = FakeExecutor(VOCABULARY, step_seconds=0.05)
        engine = await stack.enter_async_context(running_engine(executor, model))
        tokenizer = await stack.enter_async_context(running_tokenizer(tmp_path))
        networks, routers = [], []
        for _ in range(2):
            router = Router(RouterOptions(workers=(engine.address,)), GrpcServerOptions(), SECURITY)
            await router.start()
            stack.push_async_callback(router.close)
            routers.append(router)
            networks.append(await stack.enter_async_context(proxy_to(f"127.0.0.1:{router.server.port}")))
        gateway = await stack.enter_async_context(
            gateway_before(
                [network.address for network in networks], [f"127.0.0.1:{tokenizer.port}"], request_timeout_seconds=30
            )
        )
        known = gateway.context.pipeline.router_streams.routers
        await eventually(lambda: [router.connected for router in known] == [True, True], "a router is missing")
        yield Divided(gateway, networks, routers, engine)
        await wait_free(engine)


async def test_streams_of_a_router_that_is_cut_off_go_on_at_the_other(divided: Divided) -> None:
    """While it is still cut off, it lets go of them, and the worker has nothing left of them."""
    undisturbed = [await reader.result() for reader in divided.read()]
    readers = await divided.read_to_the_middle()
    divided.networks[0].swallow()
    assert [await reader.result() for reader in readers] == undisturbed
    await nothing_is_left(divided.routers[0])
    await wait_free(divided.engine)
    divided.networks[0].heal()
    assert [await reader.result() for reader in divided.read()] == undisturbed


async def test_streams_end_where_no_router_can_be_reached(divided: Divided, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients are told what has failed, and nothing is left anywhere."""
    monkeypatch.setattr("gateway.services.router_streams.ROUTER_SECONDS", 1.0)
    readers = await divided.read_to_the_middle()
    for network in divided.networks:
        network.swallow()
    for reader in readers:
        await reader.task
        assert reader.error is not None and reader.error["code"] == 503
        assert "incomplete" in reader.error["message"]
    assert not divided.gateway.context.pipeline.num_live
    for router in divided.routers:
        await nothing_is_left(router)
    await wait_free(divided.engine)
