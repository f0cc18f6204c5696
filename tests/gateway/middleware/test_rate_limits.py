"""Named keys over HTTP: `--api-key-file`."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from gateway.api_keys import ApiKeys
from tests.support.fake_engine import FakeOptions
from tests.support.fake_pooling import EMBEDDER
from tests.support.gateway_stack import GatewayStack, running_gateway
from tests.support.manual_clock import ManualClock
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEYS = (
    {"name": "few", "key": "few-requests", "requests_per_minute": 3},
    {"name": "thrifty", "key": "few-tokens", "tokens_per_minute": 60},
    {"name": "single", "key": "one-at-a-time", "max_concurrent_requests": 1},
    {"name": "heavy", "key": "heavy", "weight": 3, "max_priority": -2},
    {"name": "patient", "key": "patient", "max_priority": 4},
)
LIMITS = ("limit", "remaining", "reset")


@pytest.fixture(scope="module")
def clock() -> Iterator[ManualClock]:
    clock = ManualClock()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.main.ApiKeys", partial(ApiKeys, clock=clock))
        yield clock


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.json"
    path.write_text(json.dumps({"keys": KEYS}))
    return path


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(tokenizer_folder: Path, file: Path, clock: ManualClock) -> AsyncIterator[GatewayStack]:
    async with running_gateway(
        tokenizer_folder, api_key=("plain",), api_key_file=str(file), enable_scale_out=True
    ) as stack:
        yield stack


@pytest.fixture(autouse=True)
def a_minute_later(clock: ManualClock) -> None:
    """All buckets are full when a test begins."""
    clock.seconds += 3600


async def ask(stack: GatewayStack, key: str, path: str = "/v1/completions", **fields: Any) -> httpx.Response:
    body = {"prompt": "A", "max_tokens": 3} | fields if path.endswith("completions") else fields
    return await stack.post(path, body, authorization=f"Bearer {key}")


def told(response: httpx.Response, what: str) -> list[str]:
    return [response.headers[f"x-ratelimit-{each}-{what}"] for each in LIMITS]


async def counted(stack: GatewayStack, name: str, key: str) -> float:
    """A metric of a key, summed over its other labels."""
    text = (await stack.client.get("/metrics", headers={"authorization": "Bearer plain"})).text
    lines = [line for line in text.splitlines() if line.startswith(f"quire_api_key_{name}_total{{")]
    return sum(float(line.split()[-1]) for line in lines if f'api_key_name="{key}"' in line)


async def test_requests_per_minute(stack: GatewayStack, clock: ManualClock) -> None:
    assert told(await ask(stack, "few-requests"), "requests") == ["3", "2", "20.000s"]
    assert (await ask(stack, "few-requests", "/tokenize", prompt="A")).status_code == 200
    streamed = await ask(stack, "few-requests", stream=True)
    assert told(streamed, "requests") == ["3", "0", "60.000s"]
    refused = await ask(stack, "few-requests", "/v1/chat/completions", messages="not even read")
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "20")
    assert told(refused, "requests") == ["3", "0", "60.000s"]
    error = refused.json()["error"]
    assert (error["type"], error["code"], error["param"]) == ("RateLimitError", 429, None)
    assert "requests_per_minute is 3. Try again in 20 s" in error["message"]
    anthropic = await ask(stack, "few-requests", "/v1/messages", messages=[])
    assert (anthropic.status_code, anthropic.headers["retry-after"]) == (429, "20")
    assert (anthropic.json()["type"], anthropic.json()["error"]["type"]) == ("error", "rate_limit_error")
    for method, path in (("GET", "/v1/models"), ("POST", "/inference/v1/abort_requests")):
        answer = await stack.client.request(
            method, path, headers={"authorization": "Bearer few-requests"}, json={"request_ids": []}
        )
        assert answer.status_code == 200
    clock.seconds += 20
    assert (await ask(stack, "few-requests")).status_code == 200
    assert await counted(stack, "requests", "few") == 4
    assert await counted(stack, "refused_requests", "few") == 2


async def test_tokens_per_minute(stack: GatewayStack, clock: ManualClock) -> None:
    before = [await counted(stack, f"{name}_tokens", "thrifty") for name in ("prompt", "generation")]
    answer = await ask(stack, "few-tokens", max_tokens=40)
    usage = answer.json()["usage"]
    assert told(answer, "tokens") == ["60", str(60 - usage["prompt_tokens"] - 40), "41.000s"]
    for path, fields in (
        ("/v1/completions", {"max_tokens": 30}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "A"}], "max_tokens": 30}),
        ("/v1/responses", {"input": "A", "max_output_tokens": 30}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "A"}], "max_tokens": 30, "model": "fake"}),
        ("/inference/v1/generate", {"token_ids": [65], "sampling_params": {"max_tokens": 30}}),
    ):
        refused = await ask(stack, "few-tokens", path, **fields)
        assert (refused.status_code, int(refused.headers["retry-after"]) >= 1) == (429, True), path
        assert "tokens left, and the request may use" in refused.json()["error"]["message"]
    never = await ask(stack, "few-tokens", max_tokens=100)
    assert (never.status_code, never.json()["error"]["param"]) == (400, "max_tokens")
    assert await counted(stack, "prompt_tokens", "thrifty") == before[0] + 1
    assert await counted(stack, "generation_tokens", "thrifty") == before[1] + 40
    clock.seconds += 60
    # Without max_tokens it might use far more than the bucket holds.
    messages = [{"role": "user", "content": "A"}]
    assert (await ask(stack, "few-tokens", "/v1/chat/completions", messages=messages, stop="V")).status_code == 200


async def test_concurrent_requests(stack: GatewayStack) -> None:
    headers = {"authorization": "Bearer one-at-a-time"}
    endless = {"messages": [{"role": "user", "content": "A"}], "stream": True}
    async with stack.client.stream("POST", "/v1/chat/completions", json=endless, headers=headers) as first:
        assert first.status_code == 200
        await anext(first.aiter_bytes())
        refused = await ask(stack, "one-at-a-time")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        assert "max_concurrent_requests is 1" in refused.json()["error"]["message"]
        assert (await ask(stack, "heavy")).status_code == 200
    (single,) = (key for key in stack.context.api_keys.named if key.entry.name == "single")
    await eventually(lambda: single._running == 0, "a request that has ended still counts")
    assert (await ask(stack, "one-at-a-time", "/v1/completions", prompt=0)).status_code == 400
    assert (await ask(stack, "one-at-a-time")).status_code == 200


async def test_weight_and_priority_travel_to_the_router(stack: GatewayStack) -> None:
    record = stack.engine.record.started
    for key, asked, weight, priority in (
        ("heavy", -2, 3, -2), ("heavy", 5, 3, 5), ("patient", 0, 1, 4), ("plain", -9, 1, -9),
    ):  # fmt: skip
        assert (await ask(stack, key, priority=asked)).status_code == 200
        assert (record[-1].tenant_weight, record[-1].priority) == (weight, priority)
    refused = await ask(stack, "heavy", priority=-3)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "priority")
    assert "ask for -2 or more" in refused.json()["error"]["message"]
    assert len({generation.tenant for generation in record[-4:]}) == 3


async def test_a_key_without_a_name_has_no_limits(stack: GatewayStack) -> None:
    answer = await ask(stack, "plain")
    assert answer.status_code == 200
    assert not [name for name in answer.headers if name.startswith("x-ratelimit")]
    assert (await ask(stack, "unknown")).status_code == 401


async def test_the_file_is_read_again(stack: GatewayStack, file: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong file changes nothing; limits that have been used up stay so."""
    files = stack.context.api_keys.files
    for _ in range(3):
        await ask(stack, "few-requests")

    def put(text: str, number: int) -> None:
        file.write_text(text)
        os.utime(file, (number, number))
        files.refresh()

    with caplog.at_level(logging.INFO, "quire.watched_files"):
        put(json.dumps({"keys": [{"name": "few", "key": "few-requests"}, {"name": "few", "key": "x"}]}), 1)
    assert "the API keys have changed but cannot be read; keeping the old ones" in caplog.text
    assert "'few' occurs twice" in caplog.text and "few-requests" not in caplog.text
    assert (await ask(stack, "few-requests")).status_code == 429
    put(json.dumps({"keys": [{"name": "few", "key": "rotated", "requests_per_minute": 3}]}), 2)
    assert (await ask(stack, "few-requests")).status_code == 401
    assert (await ask(stack, "heavy")).status_code == 401
    assert (await ask(stack, "rotated")).status_code == 429
    put(json.dumps({"keys": KEYS}), 3)
    assert (await ask(stack, "heavy")).status_code == 200


async def test_pooling_models(tokenizer_folder: Path, file: Path, clock: ManualClock) -> None:
    options = FakeOptions(step_seconds=0.001, pooling=EMBEDDER)
    async with running_gateway(tokenizer_folder, options, api_key_file=str(file)) as stack:
        answer = await ask(stack, "few-tokens", "/v1/embeddings", input=[[65] * 20, [66] * 30])
        assert told(answer, "tokens") == ["60", "10", "50.000s"]
        refused = await ask(stack, "few-tokens", "/v1/embeddings", input=[[65] * 20])
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "10")
        await ask(stack, "heavy", "/v1/embeddings", input=[[65]])
        sent = stack.engine.pooling.received[-1]
        assert (sent.tenant_weight, sent.priority) == (3, 0)
        assert (await ask(stack, "heavy", "/v1/embeddings", input=[[65]], priority=-3)).status_code == 400
