"""HTTP commands of operators and their effect on clients: one stack with two engines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine_svc.scheduler.image_encodings import ImageEncodings
from tests.support.admin_stack import AdminStack, running_admin_stack
from tests.support.engine_client import expected
from tests.support.fake_executor import FakeExecutor
from tests.support.waiting import eventually
from tokenizer_svc.media import MediaPreparer

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = list(range(1, 41))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tokenizer_folder: Path) -> AsyncIterator[AdminStack]:
    async with running_admin_stack(
        tokenizer_folder, enable_prompt_tokens_details=True, return_tokens_as_token_ids=True
    ) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def stack(shared: AdminStack) -> AsyncIterator[AdminStack]:
    """The shared stack; afterwards its engines are woken, undrained and idle again."""
    yield shared
    await shared.ask("/wake_up")
    await shared.ask("/undrain", params={"worker": shared.workers})
    await eventually(lambda: len(shared.gateway.context.fleet.ready) == 2, "the engines do not get ready")
    for engine in shared.engines:
        await eventually(lambda engine=engine: not engine.worker.loop.num_requests, "requests are left over")


async def complete(stack: AdminStack, count: int = 6, **fields: Any) -> tuple[list[int], dict[str, Any]]:
    """The tokens of a greedy completion, and its usage."""
    body = {"model": "fake", "prompt": PROMPT, "max_tokens": count, "temperature": 0, "return_token_ids": True}
    answer = (await stack.gateway.post("/v1/completions", body | fields)).raise_for_status().json()
    return answer["choices"][0]["token_ids"], answer["usage"]


async def stream(stack: AdminStack, tokens: list[int], count: int, **fields: Any) -> str:
    """Appends a stream's tokens to `tokens` as they arrive, and returns its finish reason."""
    body = {"model": "fake", "prompt": PROMPT, "max_tokens": count, "temperature": 0, "return_token_ids": True}
    reason = ""
    async with stack.gateway.client.stream("POST", "/v1/completions", json=body | {"stream": True} | fields) as answer:
        assert answer.status_code == 200
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                tokens += choice["token_ids"] or []
                reason = choice["finish_reason"] or reason
    return reason


async def started(stack: AdminStack, count: int, streams: int = 4, **fields: Any) -> tuple[list[list[int]], list[Any]]:
    """Starts streams on both engines; returns their token lists, which keep growing, and their tasks."""
    found: list[list[int]] = [[] for _ in range(streams)]
    tasks = [asyncio.create_task(stream(stack, tokens, count, **fields)) for tokens in found]
    await eventually(lambda: all(len(tokens) > 3 for tokens in found), "the streams do not run")
    return found, tasks


def metric(text: str, name: str, state: str) -> float:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name}{{") and f'sleep_state="{state}"' in line]
    return float(line.rpartition(" ")[2])


@pytest.mark.parametrize("level", ["pause", "0", "1", "2"])
async def test_streams_stand_still_and_go_on_token_for_token(stack: AdminStack, level: str) -> None:
    found, tasks = await started(stack, 500)
    if level == "pause":
        told = await stack.ask("/pause?mode=keep")
        assert told["status"] == "paused"
    else:
        told = await stack.ask(f"/sleep?level={level}&mode=keep")
        assert (told["status"], told["level"]) == ("sleeping", int(level))
    assert {worker["worker"] for worker in told["workers"]} == set(stack.workers)
    assert (await stack.ask("/is_paused", method="GET"))["is_paused"]
    assert (await stack.ask("/is_sleeping", method="GET"))["is_sleeping"] == (level != "pause")
    steps = [engine.worker.loop.load().step for engine in stack.engines]
    refused = await stack.gateway.post("/v1/completions", {"model": "fake", "prompt": PROMPT, "max_tokens": 2})
    assert (refused.status_code, refused.headers["retry-after"] in ("1", "2")) == (503, True)
    assert "until /" in refused.json()["error"]["message"]
    assert steps == [engine.worker.loop.load().step for engine in stack.engines]
    assert not any(task.done() for task in tasks)
    await stack.ask("/resume" if level == "pause" else "/wake_up")
    assert await asyncio.gather(*tasks) == ["length"] * 4
    assert all(tokens == expected(PROMPT, 500) for tokens in found)
    assert not (await stack.ask("/is_sleeping", method="GET"))["is_sleeping"]


async def test_health_and_metrics_tell_who_sleeps(stack: AdminStack) -> None:
    first, _ = stack.workers
    await stack.ask("/sleep?level=1", params={"worker": first})
    assert (await stack.gateway.client.get("/health")).status_code == 200
    text = (await stack.gateway.client.get("/metrics")).text
    assert [metric(text, "vllm:engine_sleep_state", state) for state in ("awake", "weights_offloaded")] == [1, 1]
    assert (await complete(stack))[0] == expected(PROMPT, 6)
    await stack.ask("/sleep?level=2")
    health = await stack.gateway.client.get("/health")
    assert health.status_code == 503
    assert "served now: no engine worker is ready (it is asleep (level 2" in health.json()["error"]["message"]
    text = (await stack.gateway.client.get("/metrics")).text
    assert metric(text, "quire_engine_sleep_state", "discard_all") == 2
    told = await stack.ask("/workers", method="GET")
    assert [worker["state"] for worker in told["workers"]] == ["paused", "paused"]
    assert [worker["sleep_level"] for worker in told["administration"]] == [2, 2]
    assert told["administration"][0]["asleep"] == ["kv_cache", "weights"]


async def test_tags_wake_one_part_after_the_other(stack: AdminStack) -> None:
    await stack.ask("/sleep?level=2")
    wrong = await stack.ask("/wake_up?tags=kv_cache", 409)
    assert wrong["error"]["param"] == "tags"
    assert "(0 of 2 workers succeeded.)" in wrong["error"]["message"]
    assert (await stack.ask("/wake_up?tags=weights"))["tags"] == ["weights"]
    refused = await stack.ask("/resume", 409)
    assert stack.workers[0] in refused["error"]["message"] or stack.workers[1] in refused["error"]["message"]
    assert (await stack.ask("/wake_up?tags=weights,kv_cache"))["status"] == "awake"
    assert (await complete(stack))[0] == expected(PROMPT, 6)


async def test_by_default_requests_end(stack: AdminStack) -> None:
    found, tasks = await started(stack, 1500)
    await stack.ask("/pause")
    assert await asyncio.gather(*tasks) == ["abort"] * 4
    assert all(tokens == expected(PROMPT, len(tokens)) for tokens in found)
    await stack.ask("/resume")
    _, usage = await complete(stack)
    assert usage["prompt_tokens_details"]["cached_tokens"] == 0  # the cache is not kept either


async def test_requests_are_waited_for(stack: AdminStack) -> None:
    found, tasks = await started(stack, 60)
    await stack.ask("/pause?mode=wait&clear_cache=false")
    assert await asyncio.gather(*tasks) == ["length"] * 4
    assert all(tokens == expected(PROMPT, 60) for tokens in found)
    await stack.ask("/resume")
    _, usage = await complete(stack)
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0
    found, tasks = await started(stack, 1500, streams=2)
    late = await stack.ask("/pause?mode=wait&timeout_seconds=0.3", 504)
    assert "have not finished" in late["error"]["message"]
    await stack.ask("/pause?mode=abort")
    assert await asyncio.gather(*tasks) == ["abort"] * 2


@pytest.mark.parametrize("preempts", ["false", "true"])
async def test_a_reset_cache_has_nothing_and_running_requests_go_on(stack: AdminStack, preempts: str) -> None:
    await complete(stack)
    found, tasks = await started(stack, 500)
    told = await stack.ask(f"/reset_prefix_cache?reset_running_requests={preempts}&reset_external=true")
    assert told["success"] is True
    assert await asyncio.gather(*tasks) == ["length"] * 4
    assert all(tokens == expected(PROMPT, 500) for tokens in found)
    await stack.ask("/reset_prefix_cache")
    tokens, usage = await complete(stack)
    assert (tokens, usage["prompt_tokens_details"]["cached_tokens"]) == (expected(PROMPT, 6), 0)


async def test_caches_of_media_are_reset(stack: AdminStack, monkeypatch: pytest.MonkeyPatch) -> None:
    reset: list[object] = []

    def forget(cache: object) -> None:
        reset.append(cache)

    monkeypatch.setattr(MediaPreparer, "reset_cache", forget)
    monkeypatch.setattr(ImageEncodings, "forget_memory", forget)
    assert (await stack.ask("/reset_mm_cache"))["success"] is True
    assert len(reset) == 1
    assert "no worker has this cache" in (await stack.ask("/reset_mm_cache?worker=a", 400))["error"]["message"]
    assert len((await stack.ask("/reset_encoder_cache"))["workers"]) == 2
    await stack.ask("/reset_encoder_cache", params={"worker": stack.workers[0]})
    assert len(set(map(id, reset))) == 3 and len(reset) == 4


async def test_a_drained_worker_gets_nothing_new(stack: AdminStack) -> None:
    for drained in (0, 1):
        address = stack.workers[drained]
        assert (await stack.ask("/drain", params={"worker": address}))["status"] == "draining"
        before = [engine.worker.loop.load().step for engine in stack.engines]
        for _ in range(4):
            await complete(stack)
        moved = [engine.worker.loop.load().step - step for engine, step in zip(stack.engines, before, strict=True)]
        assert (moved[drained], moved[1 - drained] > 0) == (0, True)
        told = await stack.ask("/undrain", params={"worker": address})
        assert [worker["is_draining"] for worker in told["workers"]] == [False]
    assert "Name the worker" in (await stack.ask("/drain", 400))["error"]["message"]
    assert "no worker" in (await stack.ask("/drain?worker=nobody:1", 404))["error"]["message"]


async def test_requests_are_ended_by_their_names(stack: AdminStack) -> None:
    found, tasks = await started(stack, 1500, streams=2, request_id="mine")
    other, others = await started(stack, 200, streams=1, request_id="another")
    told = await stack.ask("/abort_requests", json={"request_ids": ["cmpl-mine", "unknown"]})
    assert told["aborted"] == 2
    assert await asyncio.gather(*tasks) == ["abort"] * 2
    assert all(tokens == expected(PROMPT, len(tokens)) for tokens in found)
    assert await asyncio.gather(*others) == ["length"]
    assert other[0] == expected(PROMPT, 200)
    for body in ({"request_ids": "mine"}, {}, {"request_ids": ["x"] * 1025}):
        assert (await stack.ask("/abort_requests", 400, json=body))["error"]["type"] == "BadRequestError"


async def test_profiles(stack: AdminStack, tokenizer_folder: Path, tmp_path: Path) -> None:
    assert "--profiler-config" in (await stack.ask("/start_profile", 400))["error"]["message"]
    assert (await stack.ask("/stop_profile"))["status"] == "stopped"
    options = {"profiler_config": {"torch_profiler_dir": str(tmp_path)}}
    async with running_admin_stack(tokenizer_folder, engines=1, engine_options=options) as other:
        assert (await other.ask("/start_profile"))["workers"][0]["is_profiling"]
        assert (await other.ask("/start_profile", 409))["error"]["code"] == 409
        assert (await other.ask("/stop_profile"))["workers"][0]["files"] == ["fake.json"]


async def test_what_an_engine_was_not_started_for_names_the_flag(tokenizer_folder: Path) -> None:
    async with running_admin_stack(tokenizer_folder, engines=1) as other:
        object.__setattr__(other.engines[0].worker.administration._options, "enable_sleep_mode", False)
        assert "--enable-sleep-mode" in (await other.ask("/sleep", 400))["error"]["message"]
        assert isinstance(other.engines[0].worker._executor, FakeExecutor)


@pytest.mark.parametrize(
    ("path", "parameter"),
    [
        ("/sleep?level=3", "level"), ("/sleep?level=one", "level"), ("/sleep?mode=nap", "mode"),
        ("/sleep?lvl=1", "lvl"), ("/pause?mode=", "mode"), ("/pause?clear_cache=maybe", "clear_cache"),
        ("/pause?mode=keep&mode=abort", "mode"), ("/wake_up?tags=all", "tags"),
        ("/pause?timeout_seconds=0", "timeout_seconds"), ("/pause?timeout_seconds=nan", "timeout_seconds"),
        ("/pause?timeout_seconds=1e9", "timeout_seconds"), ("/reset_prefix_cache?reset_external=2", "reset_external"),
        (f"/sleep?{'x' * 5000}=1", "x" * 64),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_named(stack: AdminStack, path: str, parameter: str) -> None:
    response = await stack.admin.post(path)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == parameter
    assert len(response.content) < 2000
    assert not (await stack.ask("/is_paused", method="GET"))["is_paused"]


async def test_what_is_not_done_says_why(stack: AdminStack) -> None:
    body = await stack.ask("/collective_rpc", 501, json={"method": "__import__", "args": ["os"]})
    assert "could run anything" in body["error"]["message"]
