"""What the gateway knows about workers, and which requests it accepts while none is ready."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.services.fleet import Fleet
from quire.options.server import GrpcServerOptions
from quire.v1 import common_pb2, router_pb2
from tests.support.fake_engine import FakeEngine, FakeOptions
from tests.support.gateway_stack import running_gateway
from tests.support.waiting import eventually

REQUEST = {"model": "fake", "prompt": "A", "max_tokens": 3}


async def test_requests_wait_while_the_only_engine_is_started_anew(tokenizer_folder: Path) -> None:
    """Probes report that no engine is ready; clients only see a delay."""
    async with running_gateway(tokenizer_folder, FakeOptions(step_seconds=0.001)) as stack:
        port = stack.engine.rpc.port
        undisturbed = (await stack.complete())["choices"]
        await stack.engine.close()
        await eventually(lambda: not stack.context.ready, "the gateway does not notice")
        waiting = [asyncio.create_task(stack.complete()) for _ in range(20)]
        await eventually(lambda: stack.router.dispatcher.waiting.waiting == 20)
        assert (await stack.client.get("/health")).status_code == 503
        assert [model["id"] for model in (await stack.client.get("/v1/models")).json()["data"]] == ["fake"]
        assert (await stack.post("/v1/completions", REQUEST | {"model": "other"})).status_code == 404
        reborn = await FakeEngine(FakeOptions(step_seconds=0.001), GrpcServerOptions(port=port)).start()
        assert [(await answer)["choices"] for answer in waiting] == [undisturbed] * 20
        await eventually(lambda: stack.context.ready)
        await reborn.close()


async def test_a_gateway_that_never_knew_a_model_says_that_it_loads(tokenizer_folder: Path) -> None:
    async with running_gateway(tokenizer_folder, FakeOptions(step_seconds=0.001)) as stack:
        stack.context.fleet = Fleet([])
        response = await stack.post("/v1/completions", REQUEST)
        assert (response.status_code, response.headers["retry-after"] in ("1", "2")) == (503, True)
        assert "Loading model" in response.json()["error"]["message"]


def test_workers_that_only_encode_serve_no_model() -> None:
    """Not even the one whose encoder they have."""
    fleet, ready = Fleet([]), router_pb2.WORKER_STATE_READY
    encoder = router_pb2.Worker(
        state=ready, model_info=common_pb2.ModelInfo(served_model_names=["a"], runner="encode", accepts_images=True)
    )
    engine = router_pb2.Worker(state=ready, model_info=common_pb2.ModelInfo(served_model_names=["a"], max_model_len=9))
    fleet._take(router_pb2.ListWorkersResponse(workers=[encoder]))
    assert (list(fleet.models), fleet.ready, fleet.heard) == ([], [], [])
    fleet._take(router_pb2.ListWorkersResponse(workers=[encoder, engine]))
    assert (fleet.models["a"].max_model_len, fleet.ready, fleet.heard) == (9, [engine], [engine])


def test_models_are_remembered_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(*names: str, state: int = router_pb2.WORKER_STATE_READY) -> router_pb2.ListWorkersResponse:
        workers = [
            router_pb2.Worker(state=state, model_info=common_pb2.ModelInfo(served_model_names=[name])) for name in names
        ]
        aliases = [router_pb2.ModelAlias(name="alias", models=["b"])]
        return router_pb2.ListWorkersResponse(workers=workers, aliases=aliases)

    now = 100.0
    monkeypatch.setattr("gateway.services.fleet.time.monotonic", lambda: now)
    fleet = Fleet([])
    fleet._take(told("a", "b"))
    fleet._take(router_pb2.ListWorkersResponse())  # a restarted router, which knows no workers yet
    assert (list(fleet.models), fleet.ready) == (["a", "b", "alias"], [])
    now += 59
    fleet._take(told("b", state=router_pb2.WORKER_STATE_UNREACHABLE))
    assert list(fleet.models) == ["a", "b", "alias"]
    now += 2
    fleet._take(told("b"))
    assert list(fleet.models) == ["b", "alias"]


def test_the_shortest_length_of_a_models_workers_is_its_own() -> None:
    infos = [common_pb2.ModelInfo(served_model_names=["a"], max_model_len=length) for length in (300, 100, 200)]
    states = [router_pb2.WORKER_STATE_READY, router_pb2.WORKER_STATE_UNREACHABLE, router_pb2.WORKER_STATE_READY]
    workers = [router_pb2.Worker(state=state, model_info=info) for state, info in zip(states, infos, strict=True)]
    fleet = Fleet([])
    fleet._take(router_pb2.ListWorkersResponse(workers=workers))
    assert fleet.models["a"].max_model_len == 200
