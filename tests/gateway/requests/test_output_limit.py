"""The output limit: the minimum of the request, the generation config and what fits the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.fake_engine import FakeOptions
from tests.support.gateway_stack import GatewayStack, running_gateway
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

MAX_NEW_TOKENS = 4000
MAX_MODEL_LEN = 4096  # of the fake engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def limited(tokenizer_folder: Path) -> AsyncIterator[GatewayStack]:
    """A gateway for a model whose generation config sets max_new_tokens."""
    async with running_gateway(tokenizer_folder, FakeOptions(max_new_tokens=MAX_NEW_TOKENS)) as stack:
        yield stack


async def reaches_engine(stack: GatewayStack, path: str, body: dict[str, Any], prompts: int = 1) -> list[int]:
    """max_tokens of each of the request's generations, after which the client disconnects."""
    started = stack.engine.record.started
    before = len(started)
    request = asyncio.create_task(stack.post(path, body))
    await eventually(lambda: request.done() or len(started) == before + prompts, "it does not reach the engine")
    request.cancel()
    return [generation.sampling.max_tokens for generation in started[before:]]


async def test_a_chat_that_asks_for_nothing_gets_what_fits(limited: GatewayStack) -> None:
    for words, expected in ((1, MAX_NEW_TOKENS), (500, None)):
        body = {"messages": [{"role": "user", "content": "A" * words}]}
        [most] = await reaches_engine(limited, "/v1/chat/completions", body)
        prompt = len(limited.engine.record.started[-1].prompt_token_ids)
        assert most == (expected or MAX_MODEL_LEN - prompt)


async def test_a_request_gets_no_more_than_the_generation_config_allows(limited: GatewayStack) -> None:
    for asked, most in ((7, 7), (4050, MAX_NEW_TOKENS), (1_000_000, MAX_NEW_TOKENS)):
        assert await reaches_engine(limited, "/v1/completions", {"prompt": [32], "max_tokens": asked}) == [most]


async def test_each_prompt_has_its_own_room(limited: GatewayStack) -> None:
    prompts = [[32], [0] * 4089 + [32]]
    assert await reaches_engine(limited, "/v1/completions", {"prompt": prompts}, 2) == [16, 6]


@pytest.mark.parametrize(
    ("body", "parameter", "numbers"),
    [
        ({"prompt": [1] * 4000, "max_tokens": 200}, "max_tokens", ("4000", "200", "4200", "96")),
        ({"prompt": [1] * 4096}, "prompt", ("4096",)),
        ({"prompt": [1] * 5000, "max_tokens": 1}, "prompt", ("5000",)),
        ({"prompt": [1] * 4090, "min_tokens": 10}, "min_tokens", ("4090", "10", "4100", "6")),
    ],
)
async def test_what_does_not_fit_is_told_in_openais_words(
    limited: GatewayStack, body: dict[str, Any], parameter: str, numbers: tuple[str, ...]
) -> None:
    error = (await limited.post("/v1/completions", body)).json()["error"]
    assert error["message"].startswith("This model's maximum context length is 4096 tokens. However, ")
    assert (error["code"], error["param"]) == (400, parameter)
    assert all(number in error["message"] for number in numbers)


@pytest.mark.parametrize(("most", "part"), [(10, "max_tokens allows only 10"), (4050, "generation config")])
async def test_least_tokens_above_the_most_say_where_that_comes_from(
    limited: GatewayStack, most: int, part: str
) -> None:
    body = {"prompt": [1], "max_tokens": most, "min_tokens": 4010}
    error = (await limited.post("/v1/completions", body)).json()["error"]
    assert (error["code"], error["param"]) == (400, "min_tokens")
    assert part in error["message"]
