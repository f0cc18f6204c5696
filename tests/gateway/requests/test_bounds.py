"""Limits per request and per caller: what exceeds them is refused before anything is allocated, without a trace."""

from __future__ import annotations

import base64
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from safetensors.torch import save

from gateway.answers.deltas import ChoiceUpdate, Content
from gateway.answers.queue import MAX_WAITING_STEPS
from gateway.requests.choice_room import ChoiceRoom
from gateway.requests.generation_request import GenerationRequest, TokenizedPrompt
from gateway.requests.state import RequestState
from quire.errors import Overloaded
from quire.rpc import session as session_module
from quire.sampling import SamplingParameters
from quire.v1 import tokenizer_pb2
from tests.support.fake_engine import FakeOptions
from tests.support.gateway_stack import GatewayStack, running_gateway
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

COMPLETION = {"model": "fake", "prompt": "A", "max_tokens": 2}
CHAT = {"model": "fake", "messages": [{"role": "user", "content": "A"}], "max_tokens": 2}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small(tokenizer_folder: Path) -> AsyncIterator[GatewayStack]:
    """A gateway with limits low enough for tests to reach."""
    limits = {"max_choices_per_request": 100, "max_tokens_per_request": 5000}
    async with running_gateway(tokenizer_folder, **limits) as stack:
        yield stack
        assert stack.context.pipeline.num_live == 0


async def refused(stack: GatewayStack, path: str, body: dict[str, Any], parameter: str, *parts: str) -> None:
    """Asserts that the request gets a 400 naming all that matters, and that no service has seen it."""
    started = len(stack.engine.record.started)
    response = await stack.post(path, body)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, parameter), error
    assert all(part in error["message"] for part in parts), error
    assert len(stack.engine.record.started) == started
    assert stack.context.pipeline.num_live == 0


async def test_a_small_body_with_very_many_choices(gateway: GatewayStack) -> None:
    body = COMPLETION | {"prompt": ["A"] * 1024, "n": 128}
    await refused(gateway, "/v1/completions", body, "n", "131072", "1024", "--max-choices-per-request")
    assert (await gateway.complete())["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("body", "parameter", "asked"),
    [
        ({"prompt": ["A"] * 101}, "prompt", "101"), ({"prompt": ["A"] * 51, "n": 2}, "n", "102"),
        ({"n": 101}, "n", "101"), ({"prompt": [[1]] * 101}, "prompt", "101"),
        ({"prompt": ["A"] * 10, "use_beam_search": True, "best_of": 11}, "n", "110"),
    ],
)  # fmt: skip
async def test_choices_are_prompts_times_n(
    small: GatewayStack, body: dict[str, Any], parameter: str, asked: str
) -> None:
    await refused(small, "/v1/completions", COMPLETION | body, parameter, asked, "100", "--max-choices-per-request")


async def test_choices_of_a_chat(small: GatewayStack) -> None:
    await refused(small, "/v1/chat/completions", CHAT | {"n": 101}, "n", "101", "--max-choices-per-request")


async def test_as_many_choices_as_are_allowed(small: GatewayStack) -> None:
    answer = await small.complete(prompt=["A"] * 50, n=2, max_tokens=1)
    assert [choice["index"] for choice in answer["choices"]] == list(range(100))


@pytest.mark.parametrize(
    ("path", "body", "parameter", "total"),
    [
        ("/v1/completions", COMPLETION | {"n": 100, "max_tokens": 50}, "prompt", "5001"),
        ("/v1/completions", COMPLETION | {"prompt": [[1] * 2000] * 3}, "prompt", "6006"),
        ("/v1/completions", COMPLETION | {"n": 100, "max_tokens": 51}, "max_tokens", "5101"),
        (
            "/v1/completions",
            COMPLETION | {"use_beam_search": True, "best_of": 19, "max_tokens": 300},
            "max_tokens",
            "5701",
        ),
        ("/v1/chat/completions", CHAT | {"n": 2, "max_tokens": None}, "max_tokens", "choices"),
    ],
)
async def test_tokens_are_counted_over_all_choices(
    small: GatewayStack, path: str, body: dict[str, Any], parameter: str, total: str
) -> None:
    await refused(small, path, body, parameter, total, "5000", "--max-tokens-per-request")


@pytest.mark.parametrize("many", [{"n": 20}, {"prompt": ["A"] * 20}])
@pytest.mark.parametrize("stream", [True, False])
async def test_a_session_that_fills_midway(
    small: GatewayStack, monkeypatch: pytest.MonkeyPatch, many: dict[str, Any], stream: bool
) -> None:
    """The request gets a retryable error, others continue, and no service keeps what was opened for it."""
    replica = small.context.pipeline.texts.replicas.pick()
    assert replica
    open_sequence, opened = replica.open, itertools.count()

    def filling(opening: tokenizer_pb2.DetokenizeOpen) -> None:
        if next(opened) >= 9:
            raise Overloaded("Full.")
        open_sequence(opening)

    with monkeypatch.context() as patch:
        patch.setattr(replica, "open", filling)
        response = await small.post("/v1/completions", COMPLETION | many | {"stream": stream, "max_tokens": 40})
    assert response.status_code == 503, response.text
    assert response.headers["retry-after"]
    assert (await small.complete())["choices"][0]["finish_reason"] == "length"
    await eventually(lambda: not small.engine.live, "the engine was left with what was begun")
    assert small.context.pipeline.num_live == 0
    assert small.context.pipeline.router_streams.num_placed == 0


async def test_a_full_outbox_forgets_what_it_was_given(small: GatewayStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing what was opened must not fail when the outbox is too full for further opens."""
    monkeypatch.setattr(session_module, "MAX_PENDING_ITEMS", 8)
    response = await small.post("/v1/completions", COMPLETION | {"n": 20})
    assert (response.status_code, response.headers["retry-after"] in ("1", "2")) == (503, True)
    assert (await small.complete())["choices"][0]["finish_reason"] == "length"
    assert small.context.pipeline.num_live == 0


async def test_a_tokenizer_service_that_does_not_read_is_given_up_and_its_text_goes_on(
    small: GatewayStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica = small.context.pipeline.texts.replicas.pick()
    assert replica
    link, post, refusals = replica.link, replica.link.post, [Overloaded("Full.")]

    def full(items: int = 1, num_bytes: int = 0, **options: Any) -> Any:
        if refusals and small.engine.live:  # refuses tokens, not what opens a sequence
            raise refusals.pop()
        return post(items, num_bytes, **options)

    with monkeypatch.context() as patch:
        patch.setattr(link, "post", full)
        answer = await small.complete(max_tokens=20)
    assert not refusals
    assert answer["choices"][0]["text"] == (await small.complete(max_tokens=20))["choices"][0]["text"]
    statistics = small.context.statistics
    assert (statistics.texts_moved, statistics.streams_moved) == (1, 0)


async def test_a_request_of_many_choices_may_fall_as_many_steps_behind_as_one_of_few() -> None:
    ended: list[RequestState] = []
    prompt, sampling = TokenizedPrompt((65,)), SamplingParameters(n=64)
    live = RequestState(
        GenerationRequest("r", "m", "m", "m", (prompt,) * 16, sampling, timeout_seconds=1.0), ended.append
    )
    for step in range(MAX_WAITING_STEPS):
        for index in range(1024):
            live.push(ChoiceUpdate(index, (Content("x"),), (step,)))
    assert not live.closed
    live.push(ChoiceUpdate(0, (Content("x"),), (1,)))
    assert ended == [live]


async def test_nobody_takes_the_room_of_others() -> None:
    room = ChoiceRoom(100)
    room.enter("a", 30)
    room.enter("a", 20)
    with pytest.raises(Overloaded, match="50 choices"):
        room.enter("a", 1)
    room.enter("b", 25)
    with pytest.raises(Overloaded):
        room.enter("b", 1)
    room.enter("c", 12)
    room.leave("a", 50)
    room.enter("b", 10)
    with pytest.raises(Overloaded):
        room.enter("", 200)
    for tenant, choices in (("b", 35), ("c", 12)):
        room.leave(tenant, choices)
    room.enter("a", 50)


async def test_a_caller_with_too_many_choices_waits_while_others_are_served(
    small: GatewayStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small.context.pipeline, "_room", ChoiceRoom(50))
    response = await small.post("/v1/completions", COMPLETION | {"n": 26}, **{"x-tenant": "greedy"})
    assert (response.status_code, response.headers["retry-after"] in ("1", "2")) == (503, True)
    response = await small.post("/v1/completions", COMPLETION | {"n": 25}, **{"x-tenant": "other"})
    assert response.status_code == 200


async def test_embeddings_under_way_are_bounded(tokenizer_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose embeddings do not fit reserves no room at all, and requests without embeddings are unaffected."""
    async with running_gateway(tokenizer_folder, FakeOptions(step_seconds=0.001, prompt_embeds_size=8)) as stack:
        monkeypatch.setattr(stack.context.pipeline, "_content_room", ChoiceRoom(100, "bytes of images and embeddings"))
        monkeypatch.setattr(stack.context.pipeline, "_room", ChoiceRoom(4))
        embeds = base64.b64encode(save({"x": torch.zeros(2, 8)})).decode()
        for _ in range(3):
            response = await stack.post("/v1/completions", {"prompt": "", "prompt_embeds": embeds})
            assert response.status_code == 503
            assert "64 more" in response.json()["error"]["message"]
        await stack.complete(n=2, temperature=1.0)
