"""Conversations that are compacted, and go on from what has become of them."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.protocol.compaction import CompactRequest
from gateway.requests.compaction import summary_request
from gateway.requests.response_items import messages_of
from gateway.requests.summaries import opened, sealed
from quire.errors import InvalidRequest
from tests.gateway.conftest import StartReplicas
from tests.support.gateway_stack import Gateway, GatewayStack

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/v1/responses/compact"
HEAD = "Summary of our conversation up to here:\n\n"
IMAGE = {"type": "input_image", "image_url": "data:image/png;base64,x"}
TALK = [
    {"role": "user", "content": "A"}, {"role": "assistant", "content": "B"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "C"}]},
]  # fmt: skip


def item(summary: str) -> dict[str, str]:
    return {"type": "compaction", "id": "cmp_x", "encrypted_content": sealed(summary)}


async def spell(gateway: Gateway, text: str) -> list[int]:
    return list((await gateway.post("/tokenize", {"prompt": text})).json()["tokens"])


async def test_a_conversation_goes_on_from_its_summary(start_replicas: StartReplicas) -> None:
    async with start_replicas(1) as replicas:
        gateway = replicas.gateway
        replicas.routers[0].state.outputs = [await spell(gateway, " so it was ")]
        response = await gateway.post(PATH, {"model": "fake", "input": TALK, "instructions": "I"})
        assert response.status_code == 200, response.text
        found = response.json()
        *users, compaction = found["output"]
        assert (found["object"], compaction["type"]) == ("response.compaction", "compaction")
        assert [each["content"][0]["text"] for each in users] == ["A", "C"]
        assert opened(compaction["encrypted_content"], "") == "so it was"
        assert found["usage"]["output_tokens"] > 0 and found["usage"]["input_tokens"] > 4
        asked = [*found["output"], {"role": "user", "content": "D"}]
        answer = await gateway.post("/v1/responses", {"model": "fake", "input": asked, "max_output_tokens": 2})
        told = [{"role": "user", "content": f"A\n\nC\n\n{HEAD}so it was\n\nD"}]
        expected = (await gateway.post("/tokenize", {"messages": told})).json()["count"]
        assert answer.json()["usage"]["input_tokens"] == expected


async def test_summaries_are_parts_of_the_users_turn() -> None:
    assert messages_of(None, [item("S"), TALK[1], TALK[0]], 0) == [
        {"role": "user", "content": f"{HEAD}S"}, {"role": "assistant", "content": "B"}, TALK[0],
    ]  # fmt: skip
    (turn,) = messages_of(None, [{"role": "user", "content": [IMAGE]}, item("S"), TALK[0]], 0)
    assert [part["type"] for part in turn["content"]] == ["image_url", "text", "text"]


async def test_the_question_ends_the_conversation_and_leaves_room() -> None:
    for items, roles in ((TALK, ["user", "assistant", "user"]), (TALK[:2], ["user", "assistant", "user"])):
        chat = summary_request(CompactRequest(), [], items, 800)
        assert [message["role"] for message in chat.messages] == roles
        assert "Answer with the summary only." in chat.messages[-1]["content"]
        assert (chat.max_completion_tokens, chat.truncate_prompt_tokens) == (100, 700)


@pytest.mark.parametrize("text", ["gAAAAB", sealed("abc")[:-2], sealed("abc").replace("1.", "2.", 1), ""])
async def test_what_others_have_compacted_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"here was not returned by /v1/responses/compact of Quire"):
        opened(text, "here")


@pytest.mark.parametrize(
    ("fields", "parameter"), [({"input": []}, "input"), ({"input": [{"type": "x"}]}, "input"), ({"model": 3}, "model")]
)
async def test_what_is_wrong_is_named(gateway: GatewayStack, fields: dict[str, Any], parameter: str) -> None:
    response = await gateway.post(PATH, {"model": "fake"} | fields)
    assert (response.status_code, response.json()["error"]["param"]) == (400, parameter)
