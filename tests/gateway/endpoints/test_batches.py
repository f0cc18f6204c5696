"""Several conversations in one request, and the path that accepts any kind of request."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.gateway_stack import GatewayStack

pytestmark = pytest.mark.asyncio(loop_scope="module")

A, B = ([{"role": "user", "content": text}] for text in ("A", "B"))


async def test_each_conversation_of_a_batch_has_the_answer_that_it_has_alone(gateway: GatewayStack) -> None:
    fields = {"max_tokens": 3, "temperature": 0, "logprobs": True}
    batch = (await gateway.post("/v1/chat/completions/batch", fields | {"messages": [A, B, A]})).json()
    alone = [(await gateway.post("/v1/chat/completions", fields | {"messages": each})).json() for each in (A, B, A)]
    assert [choice["index"] for choice in batch["choices"]] == [0, 1, 2]
    for choice, answer in zip(batch["choices"], alone, strict=True):
        assert choice | {"index": 0} == answer["choices"][0]
    for name in ("prompt_tokens", "completion_tokens"):
        assert batch["usage"][name] == sum(answer["usage"][name] for answer in alone)


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"stream": True}, "stream"), ({"n": 2}, "n"), ({"tools": [{}]}, "tools"),
        ({"use_beam_search": True}, "use_beam_search"), ({"messages": []}, "messages"),
        ({"messages": [[]]}, "messages"), ({"messages": A}, "messages"),
    ],
)  # fmt: skip
async def test_what_a_batch_has_no_place_for(gateway: GatewayStack, fields: dict[str, Any], parameter: str) -> None:
    response = await gateway.post("/v1/chat/completions/batch", {"messages": [A], "max_tokens": 1} | fields)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["param"].startswith(parameter)


async def test_one_path_takes_what_comes(gateway: GatewayStack) -> None:
    fields = {"max_tokens": 2, "temperature": 0}
    for path, body in (("/v1/chat/completions", {"messages": A}), ("/v1/completions", {"prompt": "A"})):
        answer, same = [(await gateway.post(each, body | fields)).json() for each in (path, "/invocations")]
        assert (same["object"], same["choices"]) == (answer["object"], answer["choices"])
    assert (await gateway.events("/invocations", {"messages": A} | fields))[-1] == "[DONE]"
    refused = await gateway.post("/invocations", {"input": "A"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages")
