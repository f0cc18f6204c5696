"""Adapters as clients see them: listed, requested by name, and loaded and unloaded where the server allows it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from quire.block_hash import block_keys
from tests.support.fake_engine import FakeOptions
from tests.support.gateway_stack import GatewayStack, running_gateway
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPTIONS = FakeOptions(step_seconds=0.001, max_loras=2, broken_folders=("/broken",))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tokenizer_folder: Path) -> AsyncIterator[GatewayStack]:
    async with running_gateway(tokenizer_folder, OPTIONS, allow_runtime_lora_updating=True) as stack:
        yield stack


async def load(stack: GatewayStack, name: str = "a", path: str = "/a", **fields: Any) -> None:
    response = await stack.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": path} | fields)
    assert (response.status_code, response.text) == (200, f"Success: LoRA adapter '{name}' added successfully.")


async def models(stack: GatewayStack) -> dict[str, dict[str, Any]]:
    return {card["id"]: card for card in (await stack.client.get("/v1/models")).json()["data"]}


async def test_one_is_loaded_asked_and_unloaded(stack: GatewayStack) -> None:
    await load(stack)
    cards = await models(stack)
    assert (cards["a"]["parent"], cards["a"]["root"], cards["fake"]["parent"]) == ("fake", "/a", None)
    assert (await stack.client.get("/v1/models/a")).json() == cards["a"]
    completion = await stack.complete(model="a", prompt="A" * 40, max_tokens=2)
    assert completion["model"] == "a"
    sent = stack.engine.record.started[-1]
    assert sent.model == "a"
    revision = stack.engine.adapters["a"].revision
    assert list(sent.prompt_block_keys) == block_keys(list(sent.prompt_token_ids), 16, adapter=revision)
    chat = await stack.post(
        "/v1/chat/completions", {"model": "a", "messages": [{"role": "user", "content": "A"}], "max_tokens": 1}
    )
    assert chat.json()["model"] == "a"
    removed = await stack.post("/v1/unload_lora_adapter", {"lora_name": "a"})
    assert (removed.status_code, removed.text) == (200, "Success: LoRA adapter 'a' removed successfully.")
    assert (await stack.post("/v1/completions", {"model": "a", "prompt": "A"})).status_code == 404
    assert "a" not in await models(stack)


async def test_requests_are_counted_as_the_models_whatever_an_adapter_says_its_base_is(stack: GatewayStack) -> None:
    await load(stack, "told", "/told", base_model_name="somebody/Base-7b")
    assert (await models(stack))["told"]["parent"] == "somebody/Base-7b"

    async def counted() -> dict[str, float]:
        lines = [line for line in (await stack.client.get("/metrics")).text.splitlines() if "request_success" in line]
        assert not [line for line in lines if "Base-7b" in line]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}

    before = await counted()
    await stack.complete(model="told", prompt="A", max_tokens=2)
    after = await counted()
    name = 'vllm:request_success_total{engine="0",finished_reason="length",model_name="fake"}'
    assert after[name] == before.get(name, 0) + 1


async def test_metrics_tell_which_are_in_use(stack: GatewayStack) -> None:
    await load(stack, "b", "/b")
    stack.engine.extra_load.adapters.add(name="b", on_device=True, running_sequences=1)
    stack.engine.extra_load.adapters.add(name="c", waiting_sequences=2)

    async def line() -> str:
        text = (await stack.client.get("/metrics")).text
        return next(line for line in text.splitlines() if line.startswith("vllm:lora_requests_info{"))

    labels = '{max_lora="2",running_lora_adapters="b",waiting_lora_adapters="c"}'
    for _ in range(100):
        if labels in (found := await line()):
            break
        await eventually(lambda: True, "")
    assert labels in found
    assert float(found.rsplit(" ", 1)[1]) > 1.7e9
    await stack.engine.rpc.set_serving(False)  # it drains: its adapters are still in use
    await eventually(lambda: not stack.context.fleet.ready, "it takes requests on")
    assert labels in await line()
    assert "vllm:cache_config_info{" in (await stack.client.get("/metrics")).text
    await stack.engine.rpc.set_serving(True)
    await eventually(lambda: stack.context.fleet.ready, "it takes no requests again")
    stack.engine.extra_load.Clear()


@pytest.mark.parametrize(
    ("path", "body", "status", "named"),
    [
        ("load", {"lora_name": "x"}, 400, "lora_path"),
        ("load", {"lora_name": "x", "lora_path": ""}, 400, "lora_path"),
        ("load", {"lora_name": "../x", "lora_path": "/x"}, 400, "lora_name"),
        ("load", {"lora_name": "x", "lora_path": "/broken"}, 400, "/broken is broken"),
        ("unload", {"lora_name": "unknown"}, 404, "unknown"),
        ("unload", {"lora_name": "x", "wait_seconds": 1e9}, 400, "wait_seconds"),
    ],
)
async def test_what_is_wrong_is_named(
    stack: GatewayStack, path: str, body: dict[str, Any], status: int, named: str
) -> None:
    response = await stack.post(f"/v1/{path}_lora_adapter", body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert named in error["message"]
    assert error["param"] in (None, named, *body)


async def test_without_leave_there_are_no_routes(gateway: GatewayStack) -> None:
    for path in ("load", "unload"):
        assert (await gateway.post(f"/v1/{path}_lora_adapter", {"lora_name": "a"})).status_code == 404
