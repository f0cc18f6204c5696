"""New weights for running engines, over HTTP: one stack with two engines, whose weights each test replaces."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine_svc.upkeep import RestoreWeights
from gateway.services.fleet import Fleet
from tests.gateway.admin.test_admin import PROMPT, complete, started
from tests.support.admin_stack import AdminStack, running_admin_stack
from tests.support.engine_client import expected
from tests.support.fake_executor import FakeExecutor, expected_tokens
from tests.support.plans import sampling_plan
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tokenizer_folder: Path) -> AsyncIterator[AdminStack]:
    async with running_admin_stack(
        tokenizer_folder, enable_prompt_tokens_details=True, return_tokens_as_token_ids=True
    ) as running:
        yield running


async def test_new_weights(stack: AdminStack, tmp_path: Path) -> None:
    await complete(stack, 60)
    assert (await stack.ask("/get_weight_version", method="GET"))["weight_version"] == "default"
    body = {"model_path": str(tmp_path), "weight_version": "step-7"}
    found, tasks = await started(stack, 60)
    told = await stack.ask("/update_weights_from_disk", json=body)
    assert told["success"]
    assert {worker["worker"] for worker in told["workers"]} == set(stack.workers)
    assert await asyncio.gather(*tasks) == ["length"] * 4  # by default they are waited for
    assert all(tokens == expected(PROMPT, 60) for tokens in found)
    assert (await stack.ask("/get_weight_version", method="GET"))["weight_version"] == "step-7"
    made = {engine.worker.info.fingerprint for engine in stack.engines}
    fleet = stack.gateway.context.fleet
    await eventually(
        lambda: {each.model_info.fingerprint for each in fleet.workers} == made, "routers do not learn of it"
    )
    for address in stack.workers:
        await stack.ask("/drain", params={"worker": address})
        wanted = expected_tokens(PROMPT, 6, 1000, sampling_plan(temperature=0.0), str(tmp_path))
        assert (await complete(stack))[0] == wanted
        await stack.ask("/undrain", params={"worker": address})


async def test_new_weights_for_one_worker_and_those_whose_requests_end(stack: AdminStack, tmp_path: Path) -> None:
    first, _ = stack.workers
    _, tasks = await started(stack, 1500, streams=2)
    body = {"model_path": str(tmp_path), "weight_version": "2", "abort_all_requests": True}
    await stack.ask("/update_weights_from_disk", json=body, params={"worker": first})
    assert (await stack.ask("/get_weight_version", method="GET"))["weight_version"] is None
    await stack.ask("/update_weights_from_disk?mode=abort", json=body | {"abort_all_requests": False})
    assert await asyncio.gather(*tasks) == ["abort"] * 2


async def test_the_worker_method_that_reloads_weights(stack: AdminStack, tmp_path: Path) -> None:
    for kwargs in ({"weights_path": str(tmp_path)}, {}):
        told = await stack.ask("/collective_rpc", json={"method": "reload_weights", "kwargs": kwargs})
        assert told["results"] == [None, None]
        assert {engine.worker.info.model for engine in stack.engines} == {str(tmp_path)}
    for wrong in ({"args": [1]}, {"kwargs": {"path": "/x"}}, {"kwargs": {"weights_path": "x"}}):
        refused = await stack.ask("/collective_rpc", 400, json={"method": "reload_weights", **wrong})
        assert refused["error"]["param"] == "kwargs"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_path", "models/new"), ("model_path", "/new\0"), ("weight_version", ""), ("weight_version", "x" * 257),
        ("load_format", "pt"), ("flush_cache", False), ("keep_pause", True),
    ],
)  # fmt: skip
async def test_updates_that_are_not_possible_name_the_field(stack: AdminStack, field: str, value: Any) -> None:
    before = await stack.ask("/get_weight_version", method="GET")
    refused = await stack.ask("/update_weights_from_disk", 400, json={"model_path": "/new", field: value})
    assert refused["error"]["param"] == field
    assert await stack.ask("/get_weight_version", method="GET") == before


async def test_with_several_models_the_workers_are_named(
    stack: AdminStack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    views = stack.gateway.context.fleet.views
    views[0].models = ["another"]
    monkeypatch.setattr(Fleet, "views", views)
    refused = await stack.ask("/update_weights_from_disk", 400, json={"model_path": str(tmp_path)})
    assert (refused["error"]["param"], "2 different models" in refused["error"]["message"]) == ("worker", True)
    await stack.ask("/update_weights_from_disk", json={"model_path": str(tmp_path)}, params={"worker": stack.workers})


async def test_weights_that_do_not_fit_or_load_name_the_worker(stack: AdminStack, tmp_path: Path) -> None:
    executor = stack.engines[0].worker._executor
    assert isinstance(executor, FakeExecutor)
    body, (first, second) = {"model_path": str(tmp_path)}, stack.workers
    executor.why_not = "hidden_size is 64, but 32"
    refused = await stack.ask("/update_weights_from_disk", 400, json=body)
    assert refused["error"]["param"] == "model_path"
    assert f"{first}: hidden_size is 64, but 32" in refused["error"]["message"]
    assert {worker["worker"]: bool(worker["error"]) for worker in refused["workers"]} == {first: True, second: False}
    executor.why_not, executor.no_memory_for = "", RestoreWeights
    failed = await stack.ask("/update_weights_from_disk", 400, json=body)
    assert "/wake_up loads the previous ones again" in failed["error"]["message"]
    executor.no_memory_for = None
    told = await stack.ask("/workers", method="GET")
    levels = {worker["worker"]: worker["sleep_level"] for worker in told["administration"]}
    assert levels == {first: 2, second: None}
    await stack.ask("/wake_up")
