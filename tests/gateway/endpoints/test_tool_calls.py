"""Chats that call tools, as clients see them: streamed and whole, one call or several, one choice or several."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from quire.options.tools import ToolOptions
from tests.gateway.conftest import StartReplicas
from tests.support.gateway_stack import Gateway
from tests.support.waiting import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("f", "g")]
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "A"}], "tools": TOOLS, "max_tokens": 200, "stop": ["§"],
}  # fmt: skip
HERMES = ToolOptions(tool_call_parser="hermes", enable_auto_tool_choice=True)
ARGUMENTS = '{"a": [1, 2.50], "ü": "\\u00fc <tool_call>"}'
F = f'<tool_call>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n</tool_call>'
G = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'


async def spell(gateway: Gateway, text: str) -> list[int]:
    return list((await gateway.post("/tokenize", {"prompt": text})).json()["tokens"])


async def choices_of(gateway: Gateway, **fields: Any) -> list[dict[str, Any]]:
    response = await gateway.post("/v1/chat/completions", CHAT | fields)
    assert response.status_code == 200, response.text
    return list(response.json()["choices"])


async def deltas_of(gateway: Gateway, **fields: Any) -> list[dict[str, Any]]:
    """The choices of all chunks, in order."""
    *chunks, done = await gateway.events("/v1/chat/completions", CHAT | fields)
    assert done == "[DONE]"
    return [choice for chunk in chunks for choice in chunk["choices"]]


def without_ids(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert all(call["id"].startswith("call_") for call in calls)
    return [{key: value for key, value in call.items() if key != "id"} for call in calls]


def call(name: str, arguments: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


async def test_calls_come_whole_and_in_pieces_that_are_the_same(start_replicas: StartReplicas) -> None:
    async with start_replicas(1, tools=HERMES) as replicas:
        gateway, (router,) = replicas.gateway, replicas.routers
        router.state.outputs = [await spell(gateway, f"{F}\n{G}§"), await spell(gateway, "plain§")]
        calling, plain = await choices_of(gateway, n=2)
        assert calling["message"]["content"] is None
        assert calling["finish_reason"] == "tool_calls"
        assert without_ids(calling["message"]["tool_calls"]) == [call("f", ARGUMENTS), call("g", "{}")]
        assert (plain["message"]["content"], plain["finish_reason"]) == ("plain", "stop")
        assert "tool_calls" not in plain["message"]

        deltas = await deltas_of(gateway, n=2)
        pieces = [piece for each in deltas if each["index"] == 0 for piece in each["delta"].get("tool_calls", ())]
        heads = [piece for piece in pieces if "id" in piece]
        assert [(head["index"], head["type"], head["function"]["name"]) for head in heads] == [
            (0, "function", "f"), (1, "function", "g"),
        ]  # fmt: skip
        assert all(piece.keys() == {"index", "function"} for piece in pieces if piece not in heads)
        assert len(pieces) > 4
        for index, arguments in enumerate((ARGUMENTS, "{}")):
            assert "".join(piece["function"]["arguments"] for piece in pieces if piece["index"] == index) == arguments
        ends = {each["index"]: each["finish_reason"] for each in deltas if each["finish_reason"]}
        assert ends == {0: "tool_calls", 1: "stop"}


async def test_pieces_that_come_at_once_are_a_call_and_then_its_end(start_replicas: StartReplicas) -> None:
    """The finish reason comes in a chunk of its own, after all calls.

    OpenAI's Python client takes pieces in a call's first chunk for separate calls, and with a finish reason in that
    chunk it does not report that the call is done.
    """
    async with start_replicas(1, tools=HERMES) as replicas:
        gateway, (router,) = replicas.gateway, replicas.routers
        router.state.outputs = [await spell(gateway, f"{F}\n{G}§")]
        *_, calling, end = await deltas_of(gateway, stream_interval=1000)
        assert (calling["finish_reason"], calling.get("stop_reason")) == (None, None)
        calls = [call("f", ARGUMENTS) | {"index": 0}, call("g", "{}") | {"index": 1}]
        assert without_ids(calling["delta"]["tool_calls"]) == calls
        assert (end["delta"], end["finish_reason"], end["stop_reason"]) == ({}, "tool_calls", "§")


async def test_text_beside_a_call_stays_and_half_a_call_is_text(start_replicas: StartReplicas) -> None:
    async with start_replicas(1, tools=HERMES) as replicas:
        gateway, (router,) = replicas.gateway, replicas.routers
        router.state.outputs = [await spell(gateway, f"I look.\n{F}§"), await spell(gateway, "So: <tool_call>\n{§")]
        first, second = await choices_of(gateway, n=2)
        assert first["message"]["content"] == "I look."
        assert second["message"]["content"] == "So: <tool_call>\n{"
        assert second["finish_reason"] == "stop"


async def test_a_call_that_breaks_off_ends_by_its_length(start_replicas: StartReplicas) -> None:
    async with start_replicas(1, tools=HERMES) as replicas:
        gateway, (router,) = replicas.gateway, replicas.routers
        router.state.outputs = [(await spell(gateway, F))[:60]]
        [choice] = await choices_of(gateway, max_tokens=60, stop=None)
        assert choice["finish_reason"] == "length"
        assert ARGUMENTS.startswith(choice["message"]["tool_calls"][0]["function"]["arguments"])


async def test_one_call_passes_where_more_are_not_wanted(start_replicas: StartReplicas) -> None:
    async with start_replicas(1, tools=HERMES) as replicas:
        gateway, (router,) = replicas.gateway, replicas.routers
        router.state.outputs = [await spell(gateway, f"{F}\n{G}§")]
        [choice] = await choices_of(gateway, parallel_tool_calls=False)
        assert without_ids(choice["message"]["tool_calls"]) == [call("f", ARGUMENTS)]
        deltas = await deltas_of(gateway, parallel_tool_calls=False)
        assert {piece["index"] for each in deltas for piece in each["delta"].get("tool_calls", ())} == {0}


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": None}])
async def test_without_a_choice_of_tools_text_is_text(start_replicas: StartReplicas, fields: dict[str, Any]) -> None:
    async with start_replicas(1, tools=HERMES) as replicas:
        gateway, (router,) = replicas.gateway, replicas.routers
        router.state.outputs = [await spell(gateway, f"{F}§")]
        [choice] = await choices_of(gateway, **fields)
        assert (choice["message"]["content"], choice["finish_reason"]) == (F, "stop")


@pytest.mark.parametrize("options", [ToolOptions(), HERMES], ids=["no parser", "hermes"])
async def test_a_call_that_is_asked_for_is_held_to_its_schema(
    start_replicas: StartReplicas, options: ToolOptions
) -> None:
    async with start_replicas(1, tools=options) as replicas:
        gateway, (router,) = replicas.gateway, replicas.routers
        written = F if options.tool_call_parser else ARGUMENTS
        router.state.outputs = [await spell(gateway, f"{written}§")]
        named = {"tool_choice": {"type": "function", "function": {"name": "f"}}}
        [choice] = await choices_of(gateway, **named)
        assert choice["message"]["content"] is None
        assert without_ids(choice["message"]["tool_calls"]) == [call("f", ARGUMENTS)]
        assert choice["finish_reason"] == "stop"
        *_, last = await deltas_of(gateway, **named)
        assert last["finish_reason"] == "stop"

        written = f"{F}\n{G}" if options.tool_call_parser else (
            f'[{{"name": "f", "parameters": {ARGUMENTS}}}, {{"name": "g", "parameters": {{}}}}]'
        )  # fmt: skip
        router.state.outputs = [await spell(gateway, f"{written}§")]
        [choice] = await choices_of(gateway, tool_choice="required")
        assert without_ids(choice["message"]["tool_calls"]) == [call("f", ARGUMENTS), call("g", "{}")]
        assert (choice["message"]["content"], choice["finish_reason"]) == (None, "tool_calls")
        assert all(generation.constraint.grammar for generation in router.state.started)


async def test_a_call_goes_on_where_its_router_was_lost(start_replicas: StartReplicas) -> None:
    async with start_replicas(2, tools=HERMES) as replicas:
        gateway = replicas.gateway
        output = await spell(gateway, f"{F}§")
        for router in replicas.routers:
            router.state.outputs, router.state.hold = [output], len(output) // 2
        streaming = asyncio.create_task(deltas_of(gateway, tool_choice="required"))
        await eventually(lambda: any(router.holding for router in replicas.routers), "no router has the stream")
        owner, other = replicas.owner()
        other.state.hold = None
        await owner.close()
        deltas = await streaming
        pieces = [piece for each in deltas for piece in each["delta"].get("tool_calls", ())]
        assert [piece["function"]["name"] for piece in pieces if "id" in piece] == ["f"]
        assert "".join(piece["function"]["arguments"] for piece in pieces) == ARGUMENTS
        assert deltas[-1]["finish_reason"] == "tool_calls"
        assert other.state.started[-1].constraint == owner.state.started[-1].constraint
        assert other.state.started[-1].constraint.grammar


async def test_a_schema_that_cannot_be_followed_is_the_tools_fault(start_replicas: StartReplicas) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": {"type": "strange"}}}}}
    async with start_replicas(1, tools=HERMES) as replicas:
        body = CHAT | {"tools": [tool], "tool_choice": "required"}
        response = await replicas.gateway.post("/v1/chat/completions", body)
        assert (response.status_code, response.json()["error"]["param"]) == (400, "tools")
        await choices_of(replicas.gateway, tools=[tool])  # without enforcement, the schema is the client's concern


async def test_the_template_gets_tools_and_the_calls_and_results_of_a_conversation(
    start_replicas: StartReplicas, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with start_replicas(1, tools=HERMES) as replicas:
        gateway = replicas.gateway
        render, seen = gateway.context.tokenizer.render_chat, []

        async def spy(messages: bytes, **fields: Any) -> Any:
            seen.append((json.loads(messages), json.loads(fields["tools_json"])))
            return await render(b'[{"role": "user", "content": "A"}]', **fields)

        monkeypatch.setattr(gateway.context.tokenizer, "render_chat", spy)
        calls = [{"id": "call_1"} | call("f", ARGUMENTS)]
        messages = [
            *CHAT["messages"],
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call_1", "content": "42"},
        ]
        await choices_of(gateway, messages=messages)
        await gateway.post("/tokenize", {"messages": messages, "tools": TOOLS})
        for sent, tools in seen:
            assert tools == TOOLS
            assert sent[1]["tool_calls"][0]["function"]["arguments"] == json.loads(ARGUMENTS)
            assert sent[2] == {"role": "tool", "tool_call_id": "call_1", "content": "42"}
        assert len(seen) == 2
