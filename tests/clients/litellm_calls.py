"""`litellm`: its `openai/` provider and its `hosted_vllm/` one, whole and streamed."""

from __future__ import annotations

import asyncio
import gc
import json
import os

import litellm
import pydantic
import pytest

SUM = [{"role": "user", "content": "What is 17 + 25?"}]
PERSON = [{"role": "user", "content": "Write JSON with the fields name, age: Maria, 31."}]
PROVIDERS = ("openai/quire-demo", "hosted_vllm/quire-demo")
PLACE = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": "unused", "temperature": 0}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class Person(pydantic.BaseModel):
    name: str
    age: int


def chats(model: str) -> None:
    answer = litellm.completion(model=model, messages=SUM, **PLACE)
    assert answer.choices[0].message.content == "17 + 25 = 42."
    stream = litellm.completion(model=model, messages=SUM, stream=True, stream_options={"include_usage": True}, **PLACE)
    whole = litellm.stream_chunk_builder(list(stream))
    assert whole.choices[0].message.content == "17 + 25 = 42."
    assert whole.usage.completion_tokens == answer.usage.completion_tokens


def structured_output(model: str) -> None:
    answer = litellm.completion(model=model, messages=PERSON, response_format=Person, **PLACE)
    assert json.loads(answer.choices[0].message.content) == {"name": "Maria", "age": 31}


def thoughts(model: str) -> None:
    answer = litellm.completion(
        model=model, messages=SUM, extra_body={"chat_template_kwargs": {"enable_thinking": True}}, **PLACE
    )
    assert "17" in answer.choices[0].message.reasoning_content
    assert answer.choices[0].message.content == "17 + 25 = 42."


def tools(model: str) -> None:
    fields = {"model": model, "messages": [{"role": "user", "content": "What is the weather in Rome?"}], **PLACE}
    for choice in ("auto", "required"):
        answer = litellm.completion(tools=[WEATHER], tool_choice=choice, **fields).choices[0]
        stream = litellm.completion(tools=[WEATHER], tool_choice=choice, stream=True, **fields)
        for message in (answer.message, litellm.stream_chunk_builder(list(stream)).choices[0].message):
            [call] = message.tool_calls
            assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Rome"})
        assert answer.finish_reason == "tool_calls"


def errors_have_its_classes(model: str) -> None:
    with pytest.raises(litellm.ContextWindowExceededError, match="maximum context length"):
        litellm.completion(model=model, messages=[{"role": "user", "content": "word " * 5000}], **PLACE)


async def asynchronously(model: str) -> None:
    answer = await litellm.acompletion(model=model, messages=SUM, **PLACE)
    assert answer.choices[0].message.content == "17 + 25 = 42."


if __name__ == "__main__":
    # litellm leaves streams when it has read [DONE]. Where the collector closes one while httpcore picks a connection,
    # that waits for a lock that it holds itself (seen once in 28 runs on a busy machine).
    gc.disable()
    for provider in PROVIDERS:
        chats(provider)
        structured_output(provider)
        thoughts(provider)
        tools(provider)
        errors_have_its_classes(provider)
        asyncio.run(asynchronously(provider))
