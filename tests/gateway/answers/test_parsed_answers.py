"""Chats whose text passes through a chain of parsers, streamed and whole; and answers that need no text at all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.gateway.conftest import StartReplicas
from tests.support.answer_parsers import CallParser, ThinkParser
from tests.support.gateway_stack import Gateway, GatewayStack

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = {"messages": [{"role": "user", "content": "A"}], "max_tokens": 40, "stop": ["§"]}


async def spell(gateway: Gateway, text: str) -> list[int]:
    return list((await gateway.post("/tokenize", {"prompt": text})).json()["tokens"])


async def streamed(gateway: Gateway, body: dict[str, Any]) -> tuple[str, str, list[dict[str, Any]], str]:
    """(reasoning, content, tool call deltas, finish reason) of the only choice."""
    *chunks, done = await gateway.events("/v1/chat/completions", body)
    assert done == "[DONE]"
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    deltas = [choice["delta"] for choice in choices]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    reasoning, content = ("".join(delta.get(name, "") for delta in deltas) for name in ("reasoning", "content"))
    return reasoning, content, calls, choices[-1]["finish_reason"]


async def test_reasoning_is_told_apart_from_content(start_replicas: StartReplicas) -> None:
    async with start_replicas(1) as replicas:
        gateway, (router,) = replicas.gateway, replicas.routers
        gateway.context.parsers = (ThinkParser,)
        router.state.outputs = [await spell(gateway, "<think>hm</think>yes<§")]
        assert await streamed(gateway, CHAT) == ("hm", "yes<", [], "stop")
        whole = (await gateway.post("/v1/chat/completions", CHAT)).json()
        message = whole["choices"][0]["message"]
        assert message == {"role": "assistant", "content": "yes<", "refusal": None, "reasoning": "hm"}
        # Completions return the text unchanged.
        text = (await gateway.complete(max_tokens=40, stop=["§"]))["choices"][0]["text"]
        assert text == "<think>hm</think>yes<"


async def test_calls_end_a_choice_in_their_own_way(start_replicas: StartReplicas) -> None:
    async with start_replicas(1) as replicas:
        gateway, (router,) = replicas.gateway, replicas.routers
        gateway.context.parsers = (ThinkParser, CallParser)
        router.state.outputs = [await spell(gateway, "<think>x</think><call>f {}</call>§")]
        call = {"id": "call-0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        assert await streamed(gateway, CHAT) == ("x", "", [call | {"index": 0}], "tool_calls")
        choice = (await gateway.post("/v1/chat/completions", CHAT)).json()["choices"][0]
        assert (choice["message"]["tool_calls"], choice["message"]["content"]) == ([call], None)
        assert choice["finish_reason"] == "tool_calls"


async def test_the_special_tokens_that_a_parser_reads_stay_and_others_are_dropped(
    start_replicas: StartReplicas,
) -> None:
    class Reader(ThinkParser):
        special_tokens = ("<|im_start|>", "<|not in the vocabulary|>")

    async with start_replicas(1) as replicas:
        gateway, (router,) = replicas.gateway, replicas.routers
        gateway.context.parsers = (Reader,)
        router.state.outputs = [await spell(gateway, "a<|im_start|>b<|im_end|>c§")]
        assert (await streamed(gateway, CHAT))[1] == "a<|im_start|>bc"
        kept = CHAT | {"skip_special_tokens": False}
        assert (await streamed(gateway, kept))[1] == "a<|im_start|>b<|im_end|>c"
        assert (await gateway.complete(max_tokens=40, stop=["§"]))["choices"][0]["text"] == "abc"


async def test_a_parser_that_fails_takes_its_own_request_only(gateway: GatewayStack) -> None:
    class Broken(ThinkParser):
        def parse(self, text: str) -> Any:
            raise ValueError(text)

    body = {"messages": CHAT["messages"], "max_tokens": 2}
    gateway.context.parsers = (Broken,)
    try:
        assert (await gateway.post("/v1/chat/completions", body)).status_code == 500
    finally:
        gateway.context.parsers = ()
    assert (await gateway.post("/v1/chat/completions", body)).status_code == 200
    assert gateway.context.pipeline.num_live == 0


async def test_what_only_scores_its_prompt_opens_no_text(
    gateway: GatewayStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(choice: object) -> None:
        raise AssertionError("a text was opened")

    monkeypatch.setattr(gateway.context.pipeline.texts, "open", refuse)
    answer = await gateway.complete(prompt="ABC", max_tokens=0, logprobs=0, echo=True)
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == ("ABC", "length")
    assert choice["logprobs"]["tokens"] == ["A", "B", "C"]
    assert answer["usage"]["completion_tokens"] == 0
