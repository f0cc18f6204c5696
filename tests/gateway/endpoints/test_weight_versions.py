"""Which weights computed an answer's tokens, in the answers of each endpoint."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.support.fake_engine import FakeOptions
from tests.support.gateway_stack import GatewayStack, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

GENERATE, CHAT, COMPLETIONS = "/inference/v1/generate", "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "A"}]
SPANS = [{"version": "default", "start": 0, "end": 2}, {"version": "step-1", "start": 2, "end": 5}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def updated(tokenizer_folder: Path) -> AsyncIterator[GatewayStack]:
    options = FakeOptions(step_seconds=0.001, weight_versions={2: "step-1"})
    async with running_gateway(tokenizer_folder, options, enable_scale_out=True) as stack:
        yield stack


async def choices(stack: GatewayStack, path: str, **fields: Any) -> list[dict[str, Any]]:
    answer = await stack.post(path, {"max_tokens": 5, "return_weight_versions": True} | fields)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["choices"])


async def test_each_choice_has_its_spans(updated: GatewayStack) -> None:
    found = await choices(updated, COMPLETIONS, prompt=[65, 66], n=2)
    found += await choices(updated, CHAT, messages=MESSAGES, ignore_eos=True)
    found += await choices(updated, GENERATE, token_ids=[65, 66], sampling_params={"max_tokens": 5})
    assert [choice["weight_versions"] for choice in found] == [SPANS] * 4


async def test_a_stop_string_ends_them_too(updated: GatewayStack) -> None:
    (choice,) = await choices(updated, COMPLETIONS, prompt=[32], stop=["O"], max_tokens=9)
    assert choice["weight_versions"] == [SPANS[0], SPANS[1] | {"end": 3}]


@pytest.mark.parametrize("interval", [1, 4])
async def test_the_last_chunk_has_them(updated: GatewayStack, interval: int) -> None:
    fields = {"max_tokens": 5, "ignore_eos": True, "stream_interval": interval, "return_weight_versions": True}
    for path, prompt in ((COMPLETIONS, {"prompt": [65, 66]}), (CHAT, {"messages": MESSAGES})):
        *chunks, _ = await updated.events(path, fields | prompt)
        found = [choice for chunk in chunks for choice in chunk["choices"]]
        assert ["weight_versions" in choice for choice in found] == [False] * (len(found) - 1) + [True]
        assert found[-1]["weight_versions"] == SPANS and found[-1]["finish_reason"] == "length"


async def test_other_answers_do_not_have_the_field(updated: GatewayStack) -> None:
    assert "weight_versions" not in (await updated.complete())["choices"][0]


async def test_where_there_is_no_place_for_them(updated: GatewayStack) -> None:
    for path, body in (
        ("/v1/responses", {"input": "A"}),
        (COMPLETIONS, {"prompt": "A", "use_beam_search": True, "n": 2, "max_tokens": 2}),
    ):
        error = (await updated.post(path, body | {"return_weight_versions": True})).json()["error"]
        assert error["param"] == "return_weight_versions", error
