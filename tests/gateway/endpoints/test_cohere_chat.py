"""Cohere's chat API: what clients send and read. The SDK itself is run in tests/clients."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gateway.protocol.cohere_chat import CohereChatRequest, CohereDocument
from gateway.requests.cohere_chat import chat_of
from quire.errors import InvalidRequest
from quire.options.reasoning import ReasoningOptions
from quire.options.tools import ToolOptions
from tests.gateway.conftest import StartReplicas
from tests.support.gateway_stack import Gateway, GatewayStack, running_gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATH = "/cohere/v2/chat"
ASKED: dict[str, Any] = {"model": "fake", "max_tokens": 200, "messages": [{"role": "user", "content": "A"}]}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("f", "g")]
CALL = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
HERMES = ToolOptions(tool_call_parser="hermes", enable_auto_tool_choice=True)
CALLS = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


async def answer(gateway: Gateway, **fields: Any) -> dict[str, Any]:
    response = await gateway.post(PATH, ASKED | fields)
    assert response.status_code == 200, response.text
    return dict(response.json())


async def stream(gateway: Gateway, **fields: Any) -> list[dict[str, Any]]:
    response = await gateway.post(PATH, ASKED | {"stream": True} | fields)
    assert response.headers["content-type"].startswith("text/event-stream"), response.text
    pairs = [text.split("\n") for text in response.text.strip().split("\n\n") if not text.startswith(":")]
    found = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert [name.removeprefix("event: ") for name, _ in pairs] == [event["type"] for event in found]
    return found


async def spell(gateway: Gateway, text: str) -> list[int]:
    return list((await gateway.post("/tokenize", {"prompt": text})).json()["tokens"])


async def test_an_answer_whole_and_streamed(gateway: GatewayStack) -> None:
    whole = await answer(gateway, max_tokens=3, logprobs=True)
    (content,), usage = whole["message"]["content"], whole["usage"]
    assert (whole["finish_reason"], content["type"], bool(content["text"])) == ("MAX_TOKENS", "text", True)
    assert usage["tokens"] == usage["billed_units"] and usage["tokens"]["output_tokens"] == 3
    assert [len(item["token_ids"]) for item in whole["logprobs"]] == [1, 1, 1]
    events = await stream(gateway, max_tokens=3, logprobs=True)
    assert [event["type"] for event in events[:2]] == ["message-start", "content-start"]
    assert events[-2] == {"type": "content-end", "index": 0}
    pieces = events[2:-2]
    assert "".join(piece["delta"]["message"]["content"]["text"] for piece in pieces) == content["text"]
    told = [token for piece in pieces for token in piece.get("logprobs", {"token_ids": []})["token_ids"]]
    assert told == [token for item in whole["logprobs"] for token in item["token_ids"]]
    assert events[-1] == {"type": "message-end", "delta": {"finish_reason": "MAX_TOKENS", "usage": usage}}


async def test_thinking_text_and_calls(start_replicas: StartReplicas) -> None:
    reasoning = ReasoningOptions(reasoning_parser="deepseek_r1")
    async with start_replicas(1, reasoning=reasoning, tools=HERMES) as replicas:
        gateway = replicas.gateway
        replicas.routers[0].state.outputs = [await spell(gateway, f"so</think>fine{CALLS}§")]
        whole = await answer(gateway, tools=TOOLS, stop_sequences=["§"])
        assert whole["message"]["content"] == [
            {"type": "thinking", "thinking": "so"}, {"type": "text", "text": "fine"},
        ]  # fmt: skip
        (call,) = whole["message"]["tool_calls"]
        assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("f", {"a": 1})
        assert whole["finish_reason"] == "TOOL_CALL"
        events = await stream(gateway, tools=TOOLS, stop_sequences=["§"])
        kinds = [event["type"] for event in events if not event["type"].endswith("delta")]
        assert kinds == ["message-start", *["content-start", "content-end"] * 2, "tool-call-start", "tool-call-end",
                         "message-end"]  # fmt: skip
        deltas = [event["delta"]["message"]["tool_calls"]["function"]["arguments"] for event in events
                  if event["type"].startswith("tool-call") and "delta" in event]  # fmt: skip
        assert json.loads("".join(deltas)) == {"a": 1}
        assert events[-1]["delta"]["finish_reason"] == "TOOL_CALL"


async def test_stop_sequences(start_replicas: StartReplicas) -> None:
    async with start_replicas(1) as replicas:
        replicas.routers[0].state.outputs = [await spell(replicas.gateway, "so it is")]
        found = await answer(replicas.gateway, stop_sequences=["x", "it"])
        assert (found["message"]["content"][0]["text"], found["finish_reason"]) == ("so ", "STOP_SEQUENCE")


async def test_what_the_model_is_asked(gateway: GatewayStack) -> None:
    """The conversation is rendered to the same tokens as its OpenAI equivalent."""
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "S"}]}, {"role": "user", "content": "A"},
        {"role": "assistant", "tool_plan": "B", "tool_calls": [CALL], "citations": []},
        {"role": "tool", "tool_call_id": "t", "content": [
            {"type": "text", "text": "R"}, {"type": "document", "document": {"id": "D", "data": {"x": 1}}},
        ]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "T"}, {"type": "text", "text": "C"}]},
        {"role": "user", "content": "E"},
    ]  # fmt: skip
    equivalent = [
        messages[0], messages[1], {"role": "assistant", "content": "B", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "t", "name": "f",
         "content": 'R\n<document title="D">\n{"x":1}\n</document>\n'},
        {"role": "assistant", "content": "C", "reasoning": "T"}, messages[-1],
    ]  # fmt: skip
    expected = (await gateway.post("/tokenize", {"messages": equivalent})).json()["count"]
    assert (await answer(gateway, messages=messages, max_tokens=1))["usage"]["tokens"]["input_tokens"] == expected


async def test_fields_under_their_other_names() -> None:
    fields = {
        "k": 3, "p": 0.5, "tools": TOOLS, "strict_tools": True, "tool_choice": "REQUIRED", "documents": ["D"],
        "safety_mode": "OFF", "response_format": {"type": "json_object", "json_schema": {"type": "object"}},
    }  # fmt: skip
    chat = chat_of(msgspec.json.decode(msgspec.json.encode(ASKED | fields), type=CohereChatRequest))
    assert chat.response_format and chat.response_format.json_schema
    assert bytes(chat.response_format.json_schema.schema) == b'{"type":"object"}'
    assert (chat.top_k, chat.top_p, chat.tool_choice, chat.documents) == (3, 0.5, "required", [{"text": "D"}])
    assert chat.chat_template_kwargs == {"safety_mode": "OFF"}
    assert chat.tools and all(tool["function"]["strict"] for tool in chat.tools)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"p": 2}, "p is 2"),
        ({"citation_options": {"mode": "FAST"}}, "answers have no citations"),
        ({"messages": [{"role": "tool", "tool_call_id": "x", "content": "R"}]}, "which no earlier call has"),
        ({"messages": [{"role": "chatbot", "content": "R"}]}, "must be one of system, user, assistant, tool"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image_url"}]}]}, "of type text or thinking"),
    ],
)
async def test_what_is_wrong_is_named(gateway: GatewayStack, fields: dict[str, Any], words: str) -> None:
    response = await gateway.post(PATH, ASKED | fields)
    assert response.status_code == 400 and set(response.json()) == {"message", "id"}
    assert words in response.json()["message"]


async def test_a_document_that_is_nested_too_deeply() -> None:
    nested: list[Any] = []
    for _ in range(5000):
        nested = [nested]
    body = CohereChatRequest(model="m", messages=ASKED["messages"], documents=[CohereDocument(data={"a": nested})])
    with pytest.raises(InvalidRequest, match="nested too deeply"):
        chat_of(body)


async def test_a_request_is_rendered(tokenizer_folder: Path) -> None:
    async with running_gateway(tokenizer_folder, enable_scale_out=True) as stack:
        ours = (await stack.post(f"{PATH}/render", ASKED | {"k": 5})).json()
        theirs = (await stack.post("/v1/chat/completions/render", ASKED | {"top_k": 5})).json()
        assert ours["token_ids"] == theirs["token_ids"] and ours["sampling_params"] == theirs["sampling_params"]
