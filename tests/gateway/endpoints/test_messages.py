"""Anthropic's Messages API: what clients send and read. The SDKs themselves are run in tests/clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.protocol.unknown import LeftOutTools
from quire.options.reasoning import ReasoningOptions
from quire.options.tools import ToolOptions
from tests.gateway.conftest import StartReplicas
from tests.support.gateway_stack import Gateway, GatewayStack, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASKED: dict[str, Any] = {"model": "fake", "max_tokens": 200, "messages": [{"role": "user", "content": "A"}]}
TOOLS = [{"name": name, "description": "d", "input_schema": {"type": "object"}} for name in ("f", "g")]
TOOL_USE = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
SEARCH = {"name": "web_search", "type": "web_search_20250305", "max_uses": 8}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0xLjcKAA=="}
HERMES = ToolOptions(tool_call_parser="hermes", enable_auto_tool_choice=True)


async def spell(gateway: Gateway, text: str) -> list[int]:
    return list((await gateway.post("/tokenize", {"prompt": text})).json()["tokens"])


async def answer(gateway: Gateway, **fields: Any) -> dict[str, Any]:
    response = await gateway.post("/v1/messages", ASKED | fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def stream(gateway: Gateway, **fields: Any) -> list[tuple[str, dict[str, Any]]]:
    response = await gateway.post("/v1/messages", ASKED | {"stream": True} | fields)
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    found = []
    for text in response.text.strip().split("\n\n"):
        if not text.startswith(":"):
            name, data = text.split("\n")
            found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    assert all(name == data["type"] for name, data in found)
    return found


def put_together(events: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Assembles a stream's content as clients do, checking that one block is open at a time and in order."""
    blocks: list[dict[str, Any]] = []
    is_open = False
    for name, data in events:
        if name.startswith("content_block"):
            assert is_open == (name != "content_block_start")
            assert data["index"] == len(blocks) - is_open
        if name == "content_block_start":
            blocks.append(data["content_block"] | {"json": ""})
            is_open = True
        elif name == "content_block_stop":
            is_open = False
            arguments = blocks[-1].pop("json")
            if blocks[-1]["type"] == "tool_use":
                blocks[-1]["input"] = json.loads(arguments or "{}")
        elif name == "content_block_delta":
            kind = data["delta"].pop("type")
            (value,) = data["delta"].values()
            field = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}.get(
                kind, "json"
            )
            blocks[-1][field] += value
    assert not is_open
    return blocks


async def test_an_answer(gateway: GatewayStack) -> None:
    found = await answer(gateway, max_tokens=3)
    assert found.pop("id").startswith("msg_")
    assert found == {
        "type": "message", "role": "assistant", "model": "fake", "stop_reason": "max_tokens", "stop_sequence": None,
        # No citations: null, which the AI SDK does not read.
        "content": [{"type": "text", "text": found["content"][0]["text"]}],
        "usage": {
            "input_tokens": found["usage"]["input_tokens"], "output_tokens": 3, "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    }  # fmt: skip
    assert found["usage"]["input_tokens"] > 1
    assert found["content"][0]["text"]


async def test_the_events_of_a_stream(gateway: GatewayStack) -> None:
    events = await stream(gateway, max_tokens=3)
    names = [name for name, _ in events]
    assert names[:2] == ["message_start", "content_block_start"]
    assert names[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    start = events[0][1]["message"]
    assert (start["content"], start["stop_reason"], start["usage"]["output_tokens"]) == ([], None, 0)
    assert put_together(events) == (await answer(gateway, max_tokens=3))["content"]
    assert events[-2][1]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert events[-2][1]["usage"]["output_tokens"] == 3


async def test_stop_sequences(start_replicas: StartReplicas) -> None:
    async with start_replicas(1) as replicas:
        replicas.routers[0].state.outputs = [await spell(replicas.gateway, "so it is")]
        found = await answer(replicas.gateway, stop_sequences=["x", "it"])
        assert (found["content"][0]["text"], found["stop_reason"], found["stop_sequence"]) == (
            "so ", "stop_sequence", "it",
        )  # fmt: skip


async def test_what_the_model_is_asked(gateway: GatewayStack) -> None:
    """Each conversation is rendered to the same tokens as its OpenAI equivalent."""
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    cases: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        ({"system": "S"}, [{"role": "system", "content": "S"}, {"role": "user", "content": "A"}]),
        (
            {"system": [{"type": "text", "text": "S", "cache_control": {"type": "ephemeral"}}]},
            [{"role": "system", "content": "S"}, {"role": "user", "content": "A"}],
        ),
        (
            {"messages": [
                {"role": "user", "content": [{"type": "text", "text": "A"}]},
                {"role": "assistant", "content": [{"type": "text", "text": "B"}, TOOL_USE]},
                {"role": "user", "content": [
                    {"type": "text", "text": "C"},
                    {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "R"}]},
                ]},
            ]},
            [
                {"role": "user", "content": "A"}, {"role": "assistant", "content": "B", "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "t", "content": "R"}, {"role": "user", "content": "C"},
            ],
        ),
        (
            {"messages": [{"role": "user", "content": [
                {"type": "document", "title": "T", "context": "C",
                 "source": {"type": "text", "media_type": "text/plain", "data": "D"}},
                {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "E"}]}},
                {"type": "search_result", "title": "T", "source": "S", "content": [{"type": "text", "text": "F"}]},
                {"type": "tool_reference", "tool_name": "G"},
            ]}]},
            [{"role": "user", "content": [{"type": "text", "text": text} for text in (
                '<document title="T">\nC\nD\n</document>\n', "<document>\nE\n</document>\n",
                '<document title="T S">\nF\n</document>\n', "G",
            )]}],
        ),
    ]  # fmt: skip
    for fields, messages in cases:
        expected = (await gateway.post("/tokenize", {"messages": messages})).json()["count"]
        counted = await gateway.post("/v1/messages/count_tokens", {**ASKED, **fields})
        assert counted.json() == {"input_tokens": expected}
        assert (await answer(gateway, **fields, max_tokens=1))["usage"]["input_tokens"] == expected


async def test_what_only_anthropic_can_read_is_left_out(
    gateway: GatewayStack, caplog: pytest.LogCaptureFixture
) -> None:
    search = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}
    said = [{"type": "redacted_thinking", "data": "x"}, search, found, {"type": "text", "text": "B"}]
    plain = [*ASKED["messages"], {"role": "assistant", "content": "B"}, {"role": "user", "content": "C"}]
    told = [plain[0], {"role": "assistant", "content": said}, {"role": "msg", "content": "C"}]
    system = [{"type": "text", "text": "x-anthropic-billing-header: cc=1;"}, {"type": "text", "text": "S"}]
    expected = (await answer(gateway, messages=plain, system=system[1:], max_tokens=1))["usage"]["input_tokens"]
    gateway.context.left_out_tools = LeftOutTools()
    fields = {"messages": told, "system": system, "tools": [SEARCH, {"type": "mcp_toolset"}], "max_tokens": 1}
    for choice in (None, {"type": "auto"}):
        assert (await answer(gateway, **fields, tool_choice=choice))["usage"]["input_tokens"] == expected
    assert [line for line in caplog.messages if "left out" in line] == [
        "tools left out of a request, as Quire does not run them: 'mcp_toolset', 'web_search_20250305'"
    ]


async def test_what_is_counted_depends_on_the_effort_too(
    gateway: GatewayStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Templates may mention the effort, or the thinking that it turns on."""
    told: list[Any] = []
    render = gateway.context.tokenizer.render_chat

    async def listening(*given: Any, **options: Any) -> Any:
        told.append(options["kwargs"])
        return await render(*given, **options)

    monkeypatch.setattr(gateway.context.tokenizer, "render_chat", listening)
    fields = ASKED | {"output_config": {"effort": "high"}}
    assert (await gateway.post("/v1/messages/count_tokens", fields)).status_code == 200
    assert (await gateway.post("/v1/messages", fields)).status_code == 200
    counted, answered = told
    assert counted == answered == {"reasoning_effort": "high", "enable_thinking": True, "thinking": True}


async def test_an_answer_that_has_begun_goes_on(gateway: GatewayStack) -> None:
    begun = [*ASKED["messages"], {"role": "assistant", "content": "B"}]
    given = {"messages": begun, "add_generation_prompt": False, "continue_final_message": True}
    expected = (await gateway.post("/tokenize", given)).json()["count"]
    assert (await answer(gateway, messages=begun, max_tokens=1))["usage"]["input_tokens"] == expected


async def test_calls_of_tools(start_replicas: StartReplicas) -> None:
    async with start_replicas(1, tools=HERMES) as replicas:
        gateway, (router,) = replicas.gateway, replicas.routers
        calls = ('{"name": "f", "arguments": {"a": 1}}', '{"name": "g", "arguments": {}}')
        said = "so " + "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls) + "§"
        router.state.outputs = [await spell(gateway, said)]
        fields = {"tools": TOOLS, "stop_sequences": ["§"]}
        found = await answer(gateway, **fields)
        text, first, second = found["content"]
        assert (text["type"], first["name"], first["input"], second["name"], second["input"]) == (
            "text", "f", {"a": 1}, "g", {},
        )  # fmt: skip
        assert found["stop_reason"] == "tool_use"
        events = await stream(gateway, **fields)
        blocks = put_together(events)
        for block in (first, second, *blocks):
            block.pop("id", None)
        assert blocks == found["content"]
        assert events[-2][1]["delta"]["stop_reason"] == "tool_use"
        cut = await answer(gateway, **fields, max_tokens=len(await spell(gateway, said[:46])))
        assert (cut["stop_reason"], cut["content"][-1].get("input", {})) == ("max_tokens", {})


async def test_thinking_is_a_block_of_its_own(start_replicas: StartReplicas) -> None:
    async with start_replicas(1, reasoning=ReasoningOptions(reasoning_parser="deepseek_r1")) as replicas:
        gateway, (router,) = replicas.gateway, replicas.routers
        router.state.outputs = [await spell(gateway, "why</think>so")]
        content = (await answer(gateway))["content"]
        assert [(block["type"], block.get("thinking", block.get("text"))) for block in content] == [
            ("thinking", "why"), ("text", "so"),
        ]  # fmt: skip
        assert put_together(await stream(gateway)) == content
        told = {"type": "enabled", "budget_tokens": 64, "display": "omitted"}
        assert [block["type"] for block in (await answer(gateway, thinking=told))["content"]] == ["text"]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "A"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "container_upload"}]}]}, "'container_upload'"),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}, "[0].content[0].source"),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": PDF}]}]}, "application/pdf"),
        ({"messages": [{"role": "assistant", "content": [{"type": "document"}]}]}, "'document'"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x"}]}]}, "'x'"),
        ({"messages": [{"role": "assistant", "content": [TOOL_USE]}]}, "tool_result"),
        ({"tools": [{"name": "f"}]}, "tools[0] ('f') needs an input_schema"),
        ({"tools": [*TOOLS, SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}, "'web_search'"),
        ({"tools": [SEARCH], "tool_choice": {"type": "any"}}, "tool_choice needs tools"),
        ({"mcp_servers": [{"url": "http://x"}]}, "mcp_servers"),
        ({"temperature": 3}, "temperature"),
        ({"metadata": {"user_id": "u" * 513}}, "metadata.user_id has 513 characters"),
        ({"kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params is refused"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"tool_choice": {"type": "tool", "name": "h"}, "tools": TOOLS}, "'h'"),
        ({"tool_choice": {"type": "tool", "name": "h"}}, "'h'"),
        ({"tool_choice": {"type": "any"}}, "tool_choice needs tools"),
        ({"tool_choice": {"type": "tool"}, "tools": TOOLS}, '{"type": "tool", "name": "…"}'),
        ({"stop_sequences": [""]}, "stop_sequences must"),
        ({"thinking": {"type": "enabled", "budget_tokens": -5}}, "thinking.budget_tokens is -5"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort is 'huge'"),
        ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "strin"}}}},
         "output_config.format.schema: "),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_named(gateway: GatewayStack, fields: dict[str, Any], named: str) -> None:
    response = await gateway.post("/v1/messages", ASKED | fields)
    assert response.status_code == 400, response.text
    body = response.json()
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert named in body["error"]["message"]


async def test_errors_are_in_anthropics_shape(gateway: GatewayStack, tokenizer_folder: Path) -> None:
    unknown = await gateway.post("/v1/messages", ASKED | {"model": "other"})
    assert (unknown.status_code, unknown.json()["error"]["type"]) == (404, "not_found_error")
    wrong = await gateway.client.get("/v1/messages")
    assert (wrong.status_code, wrong.json()["error"]["type"]) == (405, "invalid_request_error")
    for failed in (unknown, wrong):
        assert failed.json()["request_id"] == failed.headers["request-id"]
    assert len((await gateway.post("/v1/messages", ASKED)).headers["request-id"]) == 32
    async with running_gateway(tokenizer_folder, api_key=("key",)) as locked:
        refused = await locked.post("/v1/messages?beta=true", ASKED)
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        locked.client.headers["x-api-key"] = "key"
        assert (await locked.post("/v1/messages", ASKED)).status_code == 200
        locked.client.headers["authorization"] = "Bearer other"
        assert (await locked.post("/v1/messages", ASKED)).status_code == 401
