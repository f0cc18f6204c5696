"""Large requests and answers are processed off the event loop, which keeps serving others."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gateway.endpoints import body, large
from gateway.endpoints.body import MAX_BRACKETS
from gateway.endpoints.large import LARGE_BODY
from quire.errors import Overloaded
from quire.work_pool import WorkPool
from tests.support.gateway_stack import GatewayStack

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORDS = "some words that go on "


class Watched:
    """Records the threads in which functions were called."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.threads: list[int] = []

    def watch(self, owner: Any, name: str) -> None:
        function: Callable[..., Any] = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            self.threads.append(threading.get_ident())
            return function(*args, **kwargs)

        self._monkeypatch.setattr(owner, name, watched)

    @property
    def beside(self) -> bool:
        """Whether there were calls, and all of them ran in other threads than this one."""
        return bool(self.threads) and threading.get_ident() not in self.threads


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


async def test_a_large_body_is_decoded_beside_the_event_loop(gateway: GatewayStack, watched: Watched) -> None:
    watched.watch(body, "decode_json")
    assert (await gateway.post("/tokenize", {"prompt": "A" * LARGE_BODY})).status_code == 200
    assert watched.beside
    assert (await gateway.post("/tokenize", {"prompt": "A"})).status_code == 200
    assert not watched.beside  # a small body is decoded on the event loop


async def test_a_body_of_unknown_length_is_decoded_beside_the_event_loop(
    gateway: GatewayStack, watched: Watched
) -> None:
    async def content() -> Any:
        yield json.dumps({"prompt": "A"}).encode()

    watched.watch(body, "decode_json")
    response = await gateway.client.post("/tokenize", content=content(), headers={"content-type": "application/json"})
    assert response.status_code == 200
    assert watched.beside


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", {"prompt": "A" * 3000}),
        ("/tokenize", {"prompt": "A" * 3000, "return_token_strs": True}),
        ("/detokenize", {"tokens": [65] * 3000}),
        ("/v1/completions", {"model": "fake", "prompt": [65] * 2000, "max_tokens": 1, "return_token_ids": True}),
    ],
)
async def test_large_answers_are_encoded_beside_the_event_loop(
    gateway: GatewayStack, watched: Watched, path: str, body: dict[str, Any]
) -> None:
    watched.watch(large, "json_bytes")
    assert (await gateway.post(path, body)).status_code == 200
    assert watched.beside


async def test_the_event_loop_goes_on_while_a_large_text_is_encoded(gateway: GatewayStack) -> None:
    """All services run on this test's event loop, which must keep ticking while they work."""
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    text = WORDS * 100_000
    ticking = asyncio.create_task(tick())
    response = await gateway.post("/tokenize", {"prompt": text})
    ticking.cancel()
    assert response.json()["count"] == len(response.json()["tokens"]) > 100_000
    assert ticks > 200


async def test_strings_of_all_tokens(gateway: GatewayStack) -> None:
    answer = (await gateway.post("/tokenize", {"prompt": WORDS * 500, "return_token_strs": True})).json()
    assert len(answer["token_strs"]) == answer["count"] == len(answer["tokens"])
    short = (await gateway.post("/tokenize", {"prompt": WORDS, "return_token_strs": True})).json()
    assert answer["token_strs"][: short["count"] - 1] == short["token_strs"][:-1]


@pytest.mark.parametrize("prompt", [WORDS * 50_000, [WORDS * 50_000, "A"], [65] * 100_000, [[65] * 100_000, [65]]])
async def test_prompts_that_cannot_fit(gateway: GatewayStack, prompt: Any) -> None:
    started = len(gateway.engine.record.started)
    response = await gateway.post("/v1/completions", {"model": "fake", "prompt": prompt, "max_tokens": 1})
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, 400)
    assert "maximum context length is 4096 tokens" in error["message"]
    assert len(gateway.engine.record.started) == started


async def test_a_chat_that_cannot_fit(gateway: GatewayStack) -> None:
    messages = [{"role": "user", "content": WORDS * 4000}]
    response = await gateway.post("/v1/chat/completions", {"model": "fake", "messages": messages})
    assert "maximum context length is 4096 tokens" in response.json()["error"]["message"]


async def test_a_long_prompt_that_is_truncated_is_encoded_as_a_whole(gateway: GatewayStack) -> None:
    body = {"model": "fake", "prompt": WORDS * 2000, "max_tokens": 1, "truncate_prompt_tokens": 10}
    response = await gateway.post("/v1/completions", body)
    assert response.json()["usage"]["prompt_tokens"] == 10


async def test_more_objects_than_are_decoded_in_good_time(gateway: GatewayStack) -> None:
    message = {"role": "user", "content": "A", "more": [[]] * MAX_BRACKETS}
    response = await gateway.post("/v1/chat/completions", {"messages": [message]})
    assert response.status_code == 400
    assert f"at most {MAX_BRACKETS}" in response.json()["error"]["message"]


async def test_too_many_large_requests(gateway: GatewayStack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.context, "large_requests", WorkPool("large requests", 1, 0))
    held = threading.Event()
    holding = asyncio.create_task(gateway.context.large_requests.run(held.wait))
    await asyncio.sleep(0)
    response = await gateway.post("/tokenize", {"prompt": "A" * LARGE_BODY})
    assert (response.status_code, response.headers["retry-after"] in ("1", "2")) == (503, True)
    held.set()
    await holding
    jobs = (gateway.context.large_requests.run(int) for _ in range(2))
    first, second = await asyncio.gather(*jobs, return_exceptions=True)  # waits for both
    assert first == 0
    assert isinstance(second, Overloaded)
    assert "large requests" in second.message
    assert (await gateway.post("/tokenize", {"prompt": "A" * LARGE_BODY})).status_code == 200
