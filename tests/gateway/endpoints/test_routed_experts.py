"""The experts that tokens were routed to, in the answers of each endpoint."""

from __future__ import annotations

import base64
import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from quire.v1 import common_pb2
from tests.support.fake_engine import FakeOptions
from tests.support.gateway_stack import GatewayStack, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

FORM = common_pb2.RoutedExpertsForm(num_layers=2, experts_per_token=3, id_bytes=2)
GENERATE, MESSAGES = "/inference/v1/generate", [{"role": "user", "content": "A"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def routed(tokenizer_folder: Path) -> AsyncIterator[GatewayStack]:
    options = FakeOptions(step_seconds=0.001, routed_experts=FORM)
    async with running_gateway(tokenizer_folder, options, enable_scale_out=True) as stack:
        yield stack


def positions(choice: dict[str, Any]) -> list[int]:
    """The positions whose experts a choice has; the fake has numbered them so."""
    found = np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])), allow_pickle=False)
    assert found.dtype == np.uint16 and found.shape[1:] == (2, 3)
    assert (found == found[:, :1, :1]).all()
    return [int(row[0, 0]) for row in found]


async def choices(stack: GatewayStack, path: str, **fields: Any) -> list[dict[str, Any]]:
    answer = await stack.post(path, {"max_tokens": 4} | fields)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["choices"])


async def test_all_tokens_but_the_last_have_experts(routed: GatewayStack) -> None:
    for choice in await choices(routed, "/v1/completions", prompt=[65, 66, 67], n=2):
        assert positions(choice) == [0, 1, 2, 3, 4, 5]
    (chat,) = await choices(routed, "/v1/chat/completions", messages=MESSAGES, return_token_ids=True)
    assert positions(chat)[-1] == positions(chat)[0] + len(positions(chat)) - 1
    (nothing,) = await choices(routed, "/v1/completions", prompt=[65], max_tokens=0, echo=True)
    assert nothing["routed_experts"] is None


async def test_the_first_tokens_of_a_prompt_may_be_left_out(routed: GatewayStack) -> None:
    (choice,) = await choices(routed, "/v1/completions", prompt=[65, 66, 67], routed_experts_prompt_start=2)
    assert positions(choice) == [2, 3, 4, 5]


async def test_a_stop_string_ends_them_too(routed: GatewayStack) -> None:
    (choice,) = await choices(routed, "/v1/completions", prompt=[32], stop=["O"], max_tokens=9, return_token_ids=True)
    assert len(choice["token_ids"]) == 3 and positions(choice) == [0, 1, 2]


async def test_chunks_have_those_of_their_tokens(routed: GatewayStack) -> None:
    body = {"token_ids": [65, 66], "sampling_params": {"max_tokens": 4, "logprobs": 1}}
    *chunks, _ = await routed.events(GENERATE, body)
    parts = [positions(choice) for chunk in chunks for choice in chunk["choices"] if choice["routed_experts"]]
    assert parts[0][:2] == [0, 1] and [position for part in parts for position in part] == [0, 1, 2, 3, 4]
    whole = await choices(routed, GENERATE, **body)
    assert positions(whole[0]) == [0, 1, 2, 3, 4]


async def test_answers_of_other_engines_do_not_have_the_field(gateway: GatewayStack) -> None:
    answer = await gateway.complete()
    assert "routed_experts" not in answer["choices"][0]
