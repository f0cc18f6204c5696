"""`anthropic`: messages whole and streamed, counts, an agent's loop of calls, JSON by a schema, errors."""

from __future__ import annotations

import json

import anthropic
import httpx
import pytest

client = anthropic.Anthropic()  # ANTHROPIC_BASE_URL and ANTHROPIC_API_KEY
MODEL = httpx.get(str(client.base_url.join("/v1/models"))).json()["data"][0]["id"]
GREEDY = {"temperature": 0}  # which the SDK has no argument for any more
SUM = {
    "model": MODEL, "max_tokens": 64, "extra_body": GREEDY,
    "messages": [{"role": "user", "content": "What is 17 + 25?"}],
}  # fmt: skip
WEATHER = {
    "name": "get_weather", "description": "Tell the weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}  # fmt: skip


def messages_whole_and_streamed() -> None:
    whole = client.messages.create(**SUM)
    assert [block.text for block in whole.content] == ["17 + 25 = 42."]
    assert (whole.stop_reason, whole.stop_sequence) == ("end_turn", None)
    with client.messages.stream(**SUM) as stream:
        assert "".join(stream.text_stream) == "17 + 25 = 42."
        final = stream.get_final_message()
    assert (final.content[0].text, final.stop_reason) == (whole.content[0].text, whole.stop_reason)
    assert final.usage.input_tokens == whole.usage.input_tokens
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert client.messages.count_tokens(model=MODEL, messages=SUM["messages"]).input_tokens == whole.usage.input_tokens
    cut = client.messages.create(**SUM | {"stop_sequences": [" ="]})
    assert (cut.content[0].text, cut.stop_reason, cut.stop_sequence) == ("17 + 25", "stop_sequence", " =")
    assert client.messages.create(**SUM | {"max_tokens": 2}).stop_reason == "max_tokens"


def an_agents_loop() -> None:
    """Tools are called and their results sent until the model has its answer; whole and streamed alike."""
    for streamed in (False, True):
        conversation = [{"role": "user", "content": "What is the weather in Rome?"}]
        for _ in range(3):
            fields = {
                "model": MODEL, "max_tokens": 128, "extra_body": GREEDY, "tools": [WEATHER], "messages": conversation,
                "system": [{"type": "text", "text": "You are Quire.", "cache_control": {"type": "ephemeral"}}],
            }  # fmt: skip
            if streamed:
                with client.messages.stream(**fields) as stream:
                    answer = stream.get_final_message()
            else:
                answer = client.messages.create(**fields)
            conversation.append({"role": "assistant", "content": answer.content})
            calls = [block for block in answer.content if block.type == "tool_use"]
            if not calls:
                break
            assert answer.stop_reason == "tool_use"
            assert [(call.name, call.input) for call in calls] == [("get_weather", {"city": "Rome"})]
            result = json.dumps({"temperature": 21, "sky": "sunny"})
            conversation.append({
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": call.id, "content": result} for call in calls],
            })  # fmt: skip
        assert len(conversation) == 4
        assert "sunny" in answer.content[0].text


def a_forced_call() -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "get_weather"}):
        answer = client.messages.create(**SUM, tools=[WEATHER], tool_choice=choice)
        assert [block.type for block in answer.content] == ["tool_use"]
        assert answer.stop_reason == "tool_use"


def what_claude_code_sends() -> None:
    """Long names, a search of the web, documents, and thoughts that only Anthropic can read."""
    plain = client.messages.create(**SUM)
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hello"}}
    redacted = {"type": "redacted_thinking", "data": "x"}
    search = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    same = client.messages.create(**SUM, metadata={"user_id": "u" * 160}, tools=[search])
    assert (same.content[0].text, same.usage.input_tokens) == (plain.content[0].text, plain.usage.input_tokens)
    conversation = [
        *SUM["messages"], {"role": "assistant", "content": [redacted, *plain.content]},
        {"role": "user", "content": [document, {"type": "text", "text": "What is 3 + 4?"}]},
    ]  # fmt: skip
    assert client.messages.create(**SUM | {"messages": conversation}).content


def json_by_a_schema() -> None:
    schema = {
        "type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"], "additionalProperties": False,
    }  # fmt: skip
    asked = [{"role": "user", "content": "Write JSON with the fields name, age: Maria, 31."}]
    answer = client.messages.create(
        **SUM | {"messages": asked}, output_config={"format": {"type": "json_schema", "schema": schema}}
    )
    assert json.loads(answer.content[0].text) == {"name": "Maria", "age": 31}


def errors_have_the_sdks_classes() -> None:
    for kind, fields in (
        (anthropic.NotFoundError, {"model": "no-such-model"}),
        (anthropic.BadRequestError, {"extra_body": {"temperature": -1}}),
        (anthropic.BadRequestError, {"messages": [{"role": "user", "content": "A " * 100_000}]}),
    ):
        for streamed in (False, True):
            with pytest.raises(kind) as told:
                client.messages.create(**SUM | fields, stream=streamed)
            assert told.value.body["error"]["message"]
            assert told.value.request_id == told.value.body["request_id"]


if __name__ == "__main__":
    messages_whole_and_streamed()
    an_agents_loop()
    a_forced_call()
    what_claude_code_sends()
    json_by_a_schema()
    errors_have_the_sdks_classes()
