"""Weights that a trainer sends, over HTTP as vLLM's trainers do: one stack with two engines over fake executors."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine_svc.upkeep import JoinTrainer, LeaveTrainer, ReceiveTensors, SentTensor
from tests.support.admin_stack import AdminStack, running_admin_stack
from tests.support.fake_executor import FakeExecutor

pytestmark = pytest.mark.asyncio(loop_scope="module")
INIT = {"master_address": "127.0.0.1", "master_port": 29500, "rank_offset": 3, "world_size": 5}
UPDATE = {"names": ["a", "b"], "dtype_names": ["bfloat16", "float32"], "shapes": [[2, 3], []]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AdminStack]:
    config = {"backend": "nccl", "folder": str(tmp_path_factory.mktemp("received"))}
    async with running_admin_stack(tokenizer_folder, engine_options={"weight_transfer_config": config}) as running:
        yield running


def asked(stack: AdminStack, kind: type[Any]) -> list[Any]:
    """The commands of a kind that the engines' ranks have received, in the order of the workers' addresses."""
    found = []
    for engine in sorted(stack.engines, key=lambda engine: engine.address):
        executor = engine.worker._executor
        assert isinstance(executor, FakeExecutor)
        found += [command for command in executor.asked if isinstance(command, kind)]
    return found


def folders_left(received: list[ReceiveTensors]) -> int:
    return len({each.folder for each in received if Path(each.folder).is_dir()})


async def test_a_trainers_calls(stack: AdminStack) -> None:
    assert (await stack.ask("/get_world_size", method="GET"))["world_size"] == 2
    assert (await stack.ask("/get_world_size?include_dp=false", method="GET"))["world_size"] == 1
    packed = {"packed": True, "packed_buffer_size_bytes": 1000, "packed_num_buffers": 2}
    await stack.ask("/init_weight_transfer_engine", json={"init_info": INIT | packed})
    assert [(each.port, each.first_rank, each.world_size) for each in asked(stack, JoinTrainer)] == [
        (29500, 3, 5), (29500, 4, 5),
    ]  # fmt: skip
    await stack.ask("/start_weight_update")
    await stack.ask("/update_weights", json={"update_info": UPDATE})
    await stack.ask("/update_weights", json={"update_info": UPDATE | {"packed": False}})
    received = asked(stack, ReceiveTensors)
    assert [each.buffer_bytes for each in received] == [1000, None] * 2
    assert received[0].tensors == [SentTensor("a", "bfloat16", (2, 3)), SentTensor("b", "float32", ())]
    told = await stack.ask("/finish_weight_update", json={"weight_version": "step-1"})
    assert told["message"] == "Weight update finished"
    assert (await stack.ask("/weight_info", method="GET"))["weight_version"] == "step-1"
    assert folders_left(received) == 2
    refused = await stack.ask("/start_draft_weight_update", 400)
    assert "There is no draft model" in refused["error"]["message"]
    await stack.ask("/start_weight_update", json={"is_checkpoint_format": True})
    await stack.ask("/update_weights", json={"update_info": UPDATE})
    await stack.ask("/finish_weight_update?mode=abort")
    unnamed = (await stack.ask("/weight_info", method="GET"))["weight_version"]
    assert unnamed.startswith("update-")
    assert folders_left(received) == 0
    renamed = await stack.ask("/update_weight_version", json={"new_version": "step-2"})
    assert (renamed["success"], renamed["new_version"]) == (True, "step-2")
    assert (await stack.ask("/weight_info", method="GET"))["weight_version"] == "step-2"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/init_weight_transfer_engine", {"init_info": INIT | {"world_size": 4}}, "world_size"),
        ("/init_weight_transfer_engine", {"init_info": INIT | {"rank_offset": 0}}, "init_info.rank_offset"),
        ("/init_weight_transfer_engine", {"init_info": INIT | {"master_address": "no host"}}, "master_address"),
        ("/init_weight_transfer_engine", {}, "init_info"),
        ("/start_weight_update", {"is_checkpoint_format": False}, "is_checkpoint_format"),
        ("/update_weights", {"update_info": UPDATE | {"shapes": [[2, 3]]}}, "shapes"),
        ("/update_weights", {"update_info": UPDATE | {"dtype_names": []}}, "dtype_names"),
        ("/finish_weight_update", {"weight_version": ""}, "weight_version"),
        ("/weight_checker", {"action": "compare"}, "baseline"),
        ("/weight_checker", {"action": "checksum", "baseline": {}}, "baseline"),
        ("/weight_checker", {"action": "reset"}, "action"),
        ("/update_weight_version", {"new_version": "x" * 257}, "new_version"),
    ],
)
async def test_calls_that_are_wrong_name_the_field(stack: AdminStack, path: str, body: Any, field: str) -> None:
    assert (await stack.ask(path, 400, json=body))["error"]["param"] == field


async def test_digests_of_the_weights(stack: AdminStack, monkeypatch: pytest.MonkeyPatch) -> None:
    served, checker = {"a": "1", "b": "2"}, "/weight_checker"
    told = [served.copy() for _ in stack.engines]

    async def digest_weights(each: dict[str, str]) -> dict[str, str]:
        return each

    for engine, each in zip(stack.engines, told, strict=True):
        monkeypatch.setattr(engine.worker, "digest_weights", functools.partial(digest_weights, each))
    assert (await stack.ask(checker, json={"action": "checksum"}))["checksums"] == served
    same = await stack.ask(checker, json={"action": "compare", "baseline": served})
    assert (same["match"], same["mismatches"]) == (True, [])
    await stack.ask("/init_weight_transfer_engine", json={"init_info": INIT})
    await stack.ask("/start_weight_update")
    await stack.ask("/update_weights", json={"update_info": UPDATE})
    finished = await stack.ask("/finish_weight_update", json={"baseline": {"b": "2", "c": "3"}})
    assert (finished["match"], finished["mismatches"]) == (False, ["a", "c"])
    told[1]["b"] = "3"
    other = await stack.ask(checker, json={"action": "compare", "baseline": served})
    assert (other["match"], other["mismatches"]) == (False, ["b"])
    refused = await stack.ask(checker, 409, json={"action": "checksum"})
    assert "different weights: b. Name one" in refused["error"]["message"]


async def test_the_order_of_the_calls(stack: AdminStack) -> None:
    await stack.ask("/init_weight_transfer_engine", json={"init_info": INIT})
    before = len(asked(stack, LeaveTrainer))
    for path, body in (("/update_weights", {"update_info": UPDATE}), ("/finish_weight_update", {})):
        refused = await stack.ask(path, 409, json=body)
        assert "/start_weight_update first" in refused["error"]["message"]
    await stack.ask("/start_weight_update")
    nothing = await stack.ask("/finish_weight_update", 400)
    assert "No tensors were received" in nothing["error"]["message"]
    await stack.ask("/init_weight_transfer_engine", json={"init_info": INIT})
    assert len(asked(stack, LeaveTrainer)) == before + 2
    await stack.ask("/update_weights", 409, json={"update_info": UPDATE})


async def test_only_the_kv_cache_is_released(stack: AdminStack) -> None:
    refused = await stack.ask("/release_kv_cache_memory", 409)
    assert "use /pause first" in refused["error"]["message"]
    await stack.ask("/sleep?level=0&mode=keep")
    told = await stack.ask("/release_kv_cache_memory")
    assert [worker["asleep"] for worker in told["workers"]] == [["kv_cache"]] * 2
    assert (await stack.ask("/is_sleeping", method="GET"))["is_sleeping"]
    assert "/wake_up first" in (await stack.ask("/release_kv_cache_memory", 409))["error"]["message"]
    await stack.ask("/resume", 409)
    await stack.ask("/wake_up?tags=kv_cache")
    assert not (await stack.ask("/is_paused", method="GET"))["is_paused"]
