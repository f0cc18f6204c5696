"""`cohere`: chats whole and streamed, an agent's loop of calls, JSON by a schema, log-probabilities, errors."""

from __future__ import annotations

import json
import os

import cohere
import httpx
import pytest

URL = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
MODEL = httpx.get(f"{URL}/v1/models").json()["data"][0]["id"]
client = cohere.ClientV2(api_key="unused", base_url=f"{URL}/cohere")
SUM = {
    "model": MODEL,
    "max_tokens": 64,
    "temperature": 0,
    "messages": [{"role": "user", "content": "What is 17 + 25?"}],
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "Tell the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}  # fmt: skip


def chats_whole_and_streamed() -> None:
    whole = client.chat(**SUM, logprobs=True)
    assert [content.text for content in whole.message.content] == ["17 + 25 = 42."]
    assert (whole.finish_reason, whole.message.role) == ("COMPLETE", "assistant")
    assert "".join(item.text for item in whole.logprobs).startswith("17 + 25 = 42.")
    assert all(probability <= 0 for item in whole.logprobs for probability in item.logprobs)
    *events, end = client.chat_stream(**SUM)
    assert [each.type for each in events[:2]] == ["message-start", "content-start"]
    assert events[-1].type == "content-end"
    assert "".join(each.delta.message.content.text for each in events[2:-1]) == "17 + 25 = 42."
    assert (end.type, end.delta.finish_reason, end.delta.usage) == ("message-end", "COMPLETE", whole.usage)
    assert client.chat(**SUM | {"max_tokens": 2}).finish_reason == "MAX_TOKENS"
    cut = client.chat(**SUM, stop_sequences=[" ="])
    assert (cut.message.content[0].text, cut.finish_reason) == ("17 + 25", "STOP_SEQUENCE")


def an_agents_loop() -> None:
    """Tools are called and their results sent until the model has its answer."""
    conversation = [{"role": "user", "content": "What is the weather in Rome?"}]
    asked = {"model": MODEL, "max_tokens": 128, "temperature": 0, "tools": [WEATHER]}
    answer = client.chat(**asked, messages=conversation)
    assert answer.finish_reason == "TOOL_CALL"
    (call,) = answer.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Rome"})
    events = [each for each in client.chat_stream(**asked, messages=conversation) if each.type.startswith("tool-call")]
    assert (events[0].delta.message.tool_calls.function.name, events[-1].type) == ("get_weather", "tool-call-end")
    pieces = [each.delta.message.tool_calls.function.arguments for each in events[:-1]]
    assert json.loads("".join(pieces)) == {"city": "Rome"}
    result = {"type": "document", "document": {"data": json.dumps({"temperature": 21, "sky": "sunny"})}}
    conversation += [answer.message, {"role": "tool", "tool_call_id": call.id, "content": [result]}]
    final = client.chat(**asked, messages=conversation)
    assert final.finish_reason == "COMPLETE" and final.message.content[0].text


def json_by_a_schema() -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    answer = client.chat(**SUM, response_format={"type": "json_object", "json_schema": schema})
    assert isinstance(json.loads(answer.message.content[0].text)["sum"], int)


def errors() -> None:
    with pytest.raises(cohere.BadRequestError) as wrong:
        client.chat(**SUM | {"temperature": 9})
    assert "temperature" in wrong.value.body["message"]
    with pytest.raises(cohere.NotFoundError):
        client.chat(**SUM | {"model": "none"})


chats_whole_and_streamed()
an_agents_loop()
json_by_a_schema()
errors()
