"""OpenAI's Responses API: what clients send and read. The SDK itself is run in tests/clients."""

from __future__ import annotations

import copy
import json
from typing import Any

import httpx
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from quire.errors import Internal
from quire.options.reasoning import ReasoningOptions
from quire.options.tools import ToolOptions
from tests.gateway.conftest import StartReplicas
from tests.support.gateway_stack import Gateway, GatewayStack

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASKED: dict[str, Any] = {"model": "fake", "max_output_tokens": 200, "input": "A"}
TOOLS = [{"type": "function", "name": name, "description": "d", "parameters": {"type": "object"}} for name in "fg"]
SEARCH = {"type": "web_search"}
PATCH = {
    "type": "custom", "name": "patch", "description": "d",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}  # fmt: skip
NAMESPACE = {"type": "namespace", "name": "files", "description": "d", "tools": [TOOLS[0]]}
CALL = {"type": "function_call", "call_id": "t", "name": "f", "arguments": "{}"}
CUSTOM = {"type": "custom_tool_call", "call_id": "t", "name": "f", "input": 'a"b'}
CUSTOM_CALL = {"name": "f", "arguments": {"input": 'a"b'}}
FILE = {"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,Qg=="}
HERMES = ToolOptions(tool_call_parser="hermes", enable_auto_tool_choice=True)
EVENTS: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


async def spell(gateway: Gateway, text: str) -> list[int]:
    return list((await gateway.post("/tokenize", {"prompt": text})).json()["tokens"])


def read(response: httpx.Response) -> dict[str, Any]:
    """The response body, after validating it with the SDK's types."""
    assert response.status_code == 200, response.text
    Response.model_validate(response.json())
    return dict(response.json())


async def answer(gateway: Gateway, **fields: Any) -> dict[str, Any]:
    return read(await gateway.post("/v1/responses", ASKED | fields))


def events_of(response: httpx.Response, first: int = 0) -> list[dict[str, Any]]:
    """The events of a stream, after checking that they have the SDK's types and consecutive numbers."""
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    found = []
    for text in filter(None, response.text.split("\n\n")):
        if not text.startswith(":"):
            name, data = text.split("\n")
            found.append(json.loads(data.removeprefix("data: ")))
            assert name.removeprefix("event: ") == found[-1]["type"]
            EVENTS.validate_python(found[-1])
    assert [each["sequence_number"] for each in found] == list(range(first, first + len(found)))
    return found


async def stream(gateway: Gateway, **fields: Any) -> list[dict[str, Any]]:
    return events_of(await gateway.post("/v1/responses", ASKED | {"stream": True} | fields))


def put_together(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Assembles the output as clients do, checking that each item equals its final event."""
    output: list[dict[str, Any]] = []
    for each in copy.deepcopy(events):
        kind = each["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert each["output_index"] == len(output)
            output.append(each["item"])
        elif kind == "content_part.added":
            output[-1]["content"].append(each["part"])
        elif kind.endswith(".delta"):
            assert each["item_id"] == output[-1]["id"]
            if kind.startswith("function"):
                output[-1]["arguments"] += each["delta"]
            elif kind.startswith("custom"):
                output[-1]["input"] += each["delta"]
            else:
                output[-1]["content"][-1]["text"] += each["delta"]
                output[-1]["content"][-1].get("logprobs", []).extend(each.get("logprobs", []))
        elif kind == "output_item.done":
            output[-1]["status"] = each["item"]["status"]
            assert output[-1] == each["item"]
    return output


def without_ids(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in output]


async def test_an_answer(gateway: GatewayStack) -> None:
    found = await answer(gateway, max_output_tokens=3, metadata={"a": "b"}, user="me", temperature=0.5)
    (item,) = found["output"]
    assert found["id"].startswith("resp_")
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "incomplete")
    assert item["content"][0] | {"text": ""} == {
        "type": "output_text", "text": "", "logprobs": [], "annotations": [],
    }  # fmt: skip
    assert item["content"][0]["text"]
    usage = found["usage"]
    assert (usage["output_tokens"], usage["total_tokens"]) == (3, usage["input_tokens"] + 3)
    assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
    assert (found["metadata"], found["user"], found["temperature"], found["store"]) == ({"a": "b"}, "me", 0.5, False)
    assert (found["object"], found["model"], found["error"]) == ("response", "fake", None)


async def test_input_tokens_are_counted(gateway: GatewayStack) -> None:
    for fields in ({}, {"instructions": "Be brief.", "tools": TOOLS, "tool_choice": "none"}):
        counted = await gateway.post("/v1/responses/input_tokens", ASKED | fields)
        tokens = (await answer(gateway, **fields))["usage"]["input_tokens"]
        assert counted.json() == {"object": "response.input_tokens", "input_tokens": tokens}
    refused = await gateway.post("/v1/responses/input_tokens", ASKED | {"max_output_tokens": 0})
    assert refused.json()["error"]["param"] == "max_output_tokens"


async def test_the_events_of_a_stream(gateway: GatewayStack) -> None:
    fields = {"max_output_tokens": 3, "include": ["message.output_text.logprobs"], "top_logprobs": 2}
    events = await stream(gateway, **fields)
    names = [each["type"].removeprefix("response.") for each in events]
    assert names[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert names[-4:] == ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert set(names[4:-4]) == {"output_text.delta"}
    assert events[0]["response"]["output"] == []
    whole = await answer(gateway, **fields)
    assert without_ids(put_together(events)) == without_ids(whole["output"])
    assert events[-1]["response"]["output"] == put_together(events)
    assert events[-1]["response"]["usage"] == whole["usage"]
    scores = whole["output"][0]["content"][0]["logprobs"]
    assert [len(score["top_logprobs"]) for score in scores] == [2, 2, 2]


async def test_what_the_model_is_asked(gateway: GatewayStack) -> None:
    """Each conversation is rendered to the same tokens as the equivalent chat."""
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    user = {"role": "user", "content": "A"}
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "B"}]}
    thought = {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "W"}]}
    result = {"type": "function_call_output", "call_id": "t", "output": [{"type": "input_text", "text": "R"}]}
    turn = {"role": "assistant", "content": "B", "reasoning": "W", "tool_calls": [call]}
    cases: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        ({}, [user]),
        ({"instructions": "S"}, [{"role": "system", "content": "S"}, user]),
        (
            {"instructions": "S", "input": [{"role": "developer", "content": "D"}, user]},
            [{"role": "system", "content": "S\n\nD"}, user],
        ),
        (
            {"input": [user, thought, said, CALL | {"arguments": '{"a'}, result]},  # cut off: without arguments
            [user, turn, {"role": "tool", "tool_call_id": "t", "content": "R"}],
        ),
        (
            {"input": [user, CUSTOM, {"type": "custom_tool_call_output", "call_id": "t", "output": "R"}]},
            [
                user, {"role": "assistant", "content": None, "tool_calls": [call | {"function": CUSTOM_CALL}]},
                {"role": "tool", "tool_call_id": "t", "content": "R"},
            ],
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "A"}, FILE]}]},
            [{"role": "user", "content": 'A<document title="a.txt">\nB\n</document>\n'}],
        ),
        (
            {"input": [user, said, said, {"role": "user", "content": [{"type": "input_text", "text": "C"}]}]},
            [user, *[{"role": "assistant", "content": "B"}] * 2, {"role": "user", "content": "C"}],
        ),
    ]  # fmt: skip
    for fields, messages in cases:
        expected = (await gateway.post("/tokenize", {"messages": messages})).json()["count"]
        assert (await answer(gateway, **fields, max_output_tokens=1))["usage"]["input_tokens"] == expected


async def test_calls_of_tools(start_replicas: StartReplicas) -> None:
    async with start_replicas(1, tools=HERMES) as replicas:
        gateway, (router,) = replicas.gateway, replicas.routers
        calls = ('{"name": "f", "arguments": {"a": 1}}', '{"name": "g", "arguments": {}}')
        said = "so " + "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls) + "§"
        router.state.outputs = [await spell(gateway, said)]
        fields = {"tools": TOOLS, "stop": ["§"]}
        found = await answer(gateway, **fields)
        text, first, second = found["output"]
        assert (text["type"], first["name"], json.loads(first["arguments"]), second["name"]) == (
            "message", "f", {"a": 1}, "g",
        )  # fmt: skip
        assert found["status"] == "completed"
        assert {name: tool["name"] for name, tool in zip("fg", found["tools"], strict=True)} == {"f": "f", "g": "g"}
        events = await stream(gateway, **fields)
        assert without_ids(put_together(events)) == without_ids(found["output"])
        assert "response.function_call_arguments.done" in [each["type"] for each in events]
        for choice in ("auto", {"type": "allowed_tools", "mode": "auto", "tools": [TOOLS[0]]}):
            assert len((await answer(gateway, **fields, tool_choice=choice))["output"]) == 3
        assert (await answer(gateway, **fields, parallel_tool_calls=False))["output"][1:] != []
        assert await answer(gateway, tool_choice="auto", tools=[])


async def test_calls_of_custom_tools_and_of_namespaces(start_replicas: StartReplicas) -> None:
    async with start_replicas(1, tools=HERMES) as replicas:
        gateway, (router,) = replicas.gateway, replicas.routers
        calls = (
            r'{"name": "patch", "arguments": {"input": "a\n\"b\" \\\u00e9"}}', '{"name": "files__f", "arguments": {}}',
            '{"name": "patch", "arguments": {"text": 1}}',
        )  # fmt: skip
        said = "".join(f"<tool_call>{call}</tool_call>" for call in calls)
        router.state.outputs = [await spell(gateway, said + "§")]
        fields = {"tools": [PATCH, NAMESPACE, SEARCH], "stop": ["§"], "max_output_tokens": 500}
        found = await answer(gateway, **fields)
        custom, function, other = found["output"]
        assert (custom["type"], custom["name"], custom["input"]) == ("custom_tool_call", "patch", 'a\n"b" \\é')
        assert (function["type"], function["name"], function["namespace"]) == ("function_call", "f", "files")
        assert other["input"] == '{"text": 1}'
        assert [tool["type"] for tool in found["tools"]] == ["custom", "namespace"]
        events = await stream(gateway, **fields)
        assert without_ids(put_together(events)) == without_ids(found["output"])
        names = [each["type"] for each in events]
        assert names.count("response.custom_tool_call_input.delta") > 2
        assert names.count("response.custom_tool_call_input.done") == 2
        results = [
            {"type": f"{each['type']}_output", "call_id": each["call_id"], "output": "R"}
            for each in events[-1]["response"]["output"]
        ]
        assert await answer(gateway, **fields, input=[*events[-1]["response"]["output"], *results])
        for choice in (
            {"type": "custom", "name": "patch"}, {"type": "function", "name": "f", "namespace": "files"},
            {"type": "allowed_tools", "mode": "auto", "tools": [SEARCH, {"type": "custom", "name": "patch"}]},
        ):  # fmt: skip
            assert await answer(gateway, **fields, tool_choice=choice)


async def test_a_text_that_begins_like_a_call_has_the_scores_of_all_its_tokens(start_replicas: StartReplicas) -> None:
    async with start_replicas(1, tools=HERMES) as replicas:
        gateway, (router,) = replicas.gateway, replicas.routers
        router.state.outputs = [await spell(gateway, " <<b§")]
        fields = {"tools": TOOLS, "stop": ["§"], "include": ["message.output_text.logprobs"]}
        [said] = (await answer(gateway, **fields))["output"]
        assert said["content"][0]["text"] == " <<b"
        assert [score["token"] for score in said["content"][0]["logprobs"]][:4] == [" ", "<", "<", "b"]


async def test_thinking_is_an_item_of_its_own(start_replicas: StartReplicas) -> None:
    async with start_replicas(1, reasoning=ReasoningOptions(reasoning_parser="deepseek_r1")) as replicas:
        gateway, (router,) = replicas.gateway, replicas.routers
        router.state.outputs = [await spell(gateway, "why</think>so")]
        fields = {"include": ["message.output_text.logprobs"], "reasoning": {"effort": "low", "summary": "auto"}}
        found = await answer(gateway, **fields)
        thought, said = found["output"]
        assert (thought["type"], thought["content"]) == ("reasoning", [{"type": "reasoning_text", "text": "why"}])
        assert (said["type"], said["content"][0]["text"]) == ("message", "so")
        assert found["usage"]["output_tokens_details"]["reasoning_tokens"] == len(await spell(gateway, "why"))
        assert [score["token"] for score in said["content"][0]["logprobs"]] == ["s", "o"]
        events = await stream(gateway, **fields)
        assert without_ids(put_together(events)) == without_ids(found["output"])
        names = [each["type"] for each in events]
        assert names.index("response.reasoning_text.done") < names.index("response.output_text.delta")


async def test_formats(gateway: GatewayStack) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for config in (
        {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}, "verbosity": "low"},
        {"format": {"type": "json_object"}},
        {"format": {"type": "text"}},
    ):
        assert (await answer(gateway, text=config))["text"] == {"verbosity": None, **config}
        is_constrained = gateway.engine.record.started[-1].HasField("constraint")
        assert is_constrained == (config["format"] != {"type": "text"})


async def test_a_conversation_that_is_too_long(gateway: GatewayStack) -> None:
    long = "A" * 60_000
    refused = await gateway.post("/v1/responses", ASKED | {"input": long})
    error = refused.json()["error"]
    assert (refused.status_code, error["code"], error["param"]) == (400, 400, "input")
    assert (await answer(gateway, input=long, truncation="auto", max_output_tokens=2))["truncation"] == "auto"


async def test_a_request_that_fails(start_replicas: StartReplicas) -> None:
    async with start_replicas(1) as replicas:
        replicas.routers[0].state.refusal = Internal("broken", reason="REQUEST_FAULT")
        for streams in (False, True):
            refused = await replicas.gateway.post("/v1/responses", ASKED | {"stream": streams})
            assert (refused.status_code, refused.json()["error"]["code"]) == (500, 500)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"input": []}, "input"),
        ({"input": ""}, "input"),
        ({"input": [{"role": "tool", "content": "A"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": 1}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "x"}]}]}, "file_data"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}, "file_data"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "'item_reference'"),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]}, "'x'"),
        ({"input": [{"type": "function_call", "call_id": "x", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "reasoning", "content": "x"}]}, "input[0].content"),
        ({"tools": [SEARCH], "tool_choice": "required"}, "tool_choice needs tools"),
        ({"tools": [*TOOLS, SEARCH], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [SEARCH]}},
         "allows only tools that Quire does not run"),
        ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "custom"}]}]}, "tools[0].tools[0].name"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "JVBERg0AAA=="}]}]}, "UTF-8"),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_data": "*"}]}]}, "not valid base64"),
        ({"input": [{"type": "custom_tool_call", "call_id": "x", "name": "f"}]}, "input[0].input"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "function", "name": "h"}, "tools": TOOLS}, "'h'"),
        ({"tool_choice": {"type": "file_search"}, "tools": TOOLS}, "'file_search'"),
        ({"tool_choice": {"type": "function"}, "tools": TOOLS}, '{"type": "function", "name": "…"}'),
        ({"tool_choice": "some", "tools": TOOLS}, '{"type": "function", "name": "…"}'),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": ["f"]}, "tools": TOOLS}, '"name": "…"'),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": 1}, "tools": TOOLS}, "allowed_tools"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format"),
        ({"text": {"format": {"type": "grammar"}}}, "grammar"),
        ({"reasoning": {"effort": "huge"}}, "'huge'"),
        ({"include": ["everything"]}, "'everything'"),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 99}, "top_logprobs"),
        ({"top_logprobs": 30}, "top_logprobs"),
        ({"metadata": {"a" * 65: ""}}, "metadata"),
        ({"conversation": "conv_1"}, "previous_response_id"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"stream_options": {}}, "stream_options"),
        ({"background": True}, "background"),
        ({"temperature": 3}, "temperature"),
        ({"kv_transfer_params": {"do_remote_decode": True}}, "kv_transfer_params is refused"),
        ({"response_format": {"type": "json_object"}}, "text.format replaces it"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
    ],
)  # fmt: skip
async def test_what_is_wrong_is_named(gateway: GatewayStack, fields: dict[str, Any], named: str) -> None:
    response = await gateway.post("/v1/responses", ASKED | fields)
    assert response.status_code == 400, response.text
    assert named in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("fields", "parameter"),
    [
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"text": {"format": {"type": "json_schema", "schema": {"type": "strin"}}}}, "text.format.schema"),
        ({"max_output_tokens": 5000}, "max_output_tokens"),
        ({"input": "A" * 5000}, "input"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
    ],
)
async def test_fields_have_their_own_names(gateway: GatewayStack, fields: dict[str, Any], parameter: str) -> None:
    error = (await gateway.post("/v1/responses", ASKED | fields)).json()["error"]
    assert error["param"] == parameter
    assert not any(name in error["message"] for name in ("reasoning_effort", "response_format", "max_tokens"))


async def test_what_is_not_there(gateway: GatewayStack) -> None:
    for fields in ({"model": "other"}, {"previous_response_id": "resp_x"}):
        missing = await gateway.post("/v1/responses", ASKED | fields)
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "NotFoundError")
