"""`quire serve` without a model: what a new user sees first."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import httpx
import openai
import pydantic
import pytest

from demo_model.corpus.tools import offer
from tests.support.stack import Stack, start_stack, stop_stack

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = start_stack(None, tmp_path_factory.mktemp("demo") / "serve.log")
    try:
        stack.wait_healthy()
        yield stack
    finally:
        stop_stack(stack)


@pytest.fixture
def client(demo: Stack) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{demo.url}/v1", api_key="unused")


def ask(client: openai.OpenAI, *questions: str) -> str:
    """The answer to the last question of a conversation."""
    model = client.models.list().data[0].id
    messages: list[dict[str, str]] = []
    for question in questions:
        messages.append({"role": "user", "content": question})
        answer = client.chat.completions.create(model=model, messages=messages, temperature=0).choices[0]  # type: ignore[arg-type]
        assert answer.finish_reason == "stop"
        messages.append({"role": "assistant", "content": answer.message.content or ""})
    return messages[-1]["content"]


def test_it_is_a_guide_to_its_server(client: openai.OpenAI) -> None:
    assert "help" in ask(client, "Hello!") or "do for you" in ask(client, "Hello!")
    assert "OpenAI" in ask(client, "What is Quire?")
    assert "serve" in ask(client, "How do I start Quire?")


def test_it_counts_remembers_and_writes_json(client: openai.OpenAI) -> None:
    assert "42" in ask(client, "What is 17 + 25?")
    assert "Clara" in ask(client, "My name is Clara.", "What is my name?")
    assert json.loads(ask(client, "Write JSON with the fields age, city: 31, Rome.")) == {"age": 31, "city": "Rome"}


SUM: Any = [{"role": "user", "content": "What is 17 + 25?"}]
WEATHER_TOOL: Any = {
    "type": "function",
    "function": {
        "name": "get_weather", "description": "The weather in a city",
        "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
            "additionalProperties": False,
        },
    },
}  # fmt: skip
THINK = {"chat_template_kwargs": {"enable_thinking": True}}


def test_it_thinks_where_it_is_asked_to(client: openai.OpenAI) -> None:
    """Holds for whole and streamed answers; reasoning tokens are those between the marks."""
    model = client.models.list().data[0].id
    fields: Any = {"model": model, "messages": SUM, "temperature": 0.5, "seed": 3, "n": 3}
    whole = client.chat.completions.create(**fields, extra_body={**THINK, "return_token_ids": True})
    thoughts = [(choice.message.model_extra or {})["reasoning"] for choice in whole.choices]
    assert all("17" in thought and "think>" not in thought for thought in thoughts)
    assert [choice.message.content for choice in whole.choices] == ["17 + 25 = 42."] * 3
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(**fields, extra_body=THINK, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += (choice.delta.model_extra or {}).get("reasoning", "")
    assert texts == thoughts
    end = spell(client, "</think>")[0]
    tokens = [(choice.model_extra or {})["token_ids"].index(end) for choice in whole.choices]
    assert whole.usage and whole.usage.completion_tokens_details
    assert whole.usage.completion_tokens_details.reasoning_tokens == sum(tokens)


def test_efforts_turn_its_thinking_on_and_off(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    fields: Any = {"model": model, "messages": SUM, "temperature": 0, "stop": ["="]}
    answers = {
        effort: client.chat.completions.create(**fields, reasoning_effort=effort).choices[0].message
        for effort in ("none", "low")
    }
    assert {effort: bool((answer.model_extra or {})["reasoning"]) for effort, answer in answers.items()} == {
        "none": False, "low": True,
    }  # fmt: skip
    # The thinking contains a = too, and is not ended by it.
    assert {effort: answer.content for effort, answer in answers.items()} == dict.fromkeys(answers, "17 + 25 ")


def test_what_it_thought_goes_back_to_it(client: openai.OpenAI) -> None:
    """Under the name that answers use and under its former one."""

    def prompt_tokens(**thought: str) -> int:
        turn = {"role": "assistant", "content": "17 + 25 = 42.", **thought}
        answer = client.chat.completions.create(
            model="quire-demo", messages=[*SUM, turn, {"role": "user", "content": "Thanks!"}], max_tokens=1
        )  # fmt: skip
        assert answer.usage
        return answer.usage.prompt_tokens

    without = prompt_tokens()
    assert prompt_tokens(reasoning="I add.") == prompt_tokens(reasoning_content="I add.") > without
    assert prompt_tokens(reasoning="") == without


def test_a_turn_that_is_sent_back_is_the_one_that_was_made(client: openai.OpenAI) -> None:
    """The tokens are identical, so that their KV cache is reused."""
    answer = client.chat.completions.create(
        model="quire-demo", messages=SUM, temperature=0, extra_body={**THINK, "return_token_ids": True}
    )
    choice, extra = answer.choices[0], answer.model_extra or {}
    turn = choice.message.model_dump(exclude_none=True)
    assert turn["reasoning"]
    body = {"messages": [*SUM, turn], "add_generation_prompt": False}
    rendered = httpx.post(str(client.base_url.join("/tokenize")), json=body).json()["tokens"]
    made = [*extra["prompt_token_ids"], *(choice.model_extra or {})["token_ids"]]
    assert rendered[: len(made)] == made


def test_a_budget_and_a_schema_that_begins_behind_the_thinking(client: openai.OpenAI) -> None:
    class Sum(pydantic.BaseModel):
        result: int

    fields: Any = {"model": "quire-demo", "messages": SUM, "temperature": 0.9, "seed": 5, "n": 3}
    for budget in (5, None):
        answer = client.chat.completions.parse(
            **fields, response_format=Sum, extra_body={**THINK, "thinking_token_budget": budget}
        )
        assert all(isinstance(choice.message.parsed, Sum) for choice in answer.choices)
        thoughts = [(choice.message.model_extra or {})["reasoning"] for choice in answer.choices]
        assert all(thought and "{" not in thought for thought in thoughts)
        assert answer.usage and answer.usage.completion_tokens_details
        tokens = answer.usage.completion_tokens_details.reasoning_tokens
        assert tokens == 3 * budget if budget else tokens and tokens > 30


def test_it_thinks_before_it_calls_a_tool(client: openai.OpenAI) -> None:
    fields: Any = {
        "model": "quire-demo", "messages": [{"role": "user", "content": "What is the weather in Rome?"}],
        "tools": [WEATHER_TOOL], "temperature": 0, "extra_body": THINK,
    }  # fmt: skip
    whole = client.chat.completions.create(**fields).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.tool_calls
    call = whole.message.tool_calls[0]
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Rome"})
    reasoning, arguments, contents = "", "", ""
    for chunk in client.chat.completions.create(**fields, stream=True):
        delta = chunk.choices[0].delta
        reasoning += (delta.model_extra or {}).get("reasoning", "")
        contents += delta.content or ""
        arguments += "".join((piece.function and piece.function.arguments) or "" for piece in delta.tool_calls or ())
    assert (reasoning, arguments) == ((whole.message.model_extra or {})["reasoning"], call.function.arguments)
    assert reasoning
    assert not contents
    # A forced call begins after the thinking, too.
    held = client.chat.completions.create(**fields, tool_choice="required").choices[0].message
    assert ((held.model_extra or {})["reasoning"], held.content) == (reasoning, None)
    assert held.tool_calls
    assert json.loads(held.tool_calls[0].function.arguments) == {"city": "Rome"}  # type: ignore[union-attr]


def tool_calls_of(client: openai.OpenAI, stream: bool, **fields: Any) -> tuple[list[tuple[str, str]], str, str]:
    """(name and arguments of each call, content, finish reason) of the first choice."""
    if not stream:
        choice = client.chat.completions.create(**fields).choices[0]
        calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()
                 if call.type == "function"]  # fmt: skip
        return calls, choice.message.content or "", choice.finish_reason
    names: dict[int, str] = {}
    pieces: dict[int, str] = {}
    content, reason = "", ""
    for chunk in client.chat.completions.create(**fields, stream=True):
        delta = chunk.choices[0].delta
        content += delta.content or ""
        reason = chunk.choices[0].finish_reason or reason
        for piece in delta.tool_calls or ():
            assert piece.function
            if piece.id:
                names[piece.index] = piece.function.name or ""
            pieces[piece.index] = pieces.get(piece.index, "") + (piece.function.arguments or "")
    return [(names[index], pieces[index]) for index in names], content, reason


@pytest.mark.parametrize("choice", ["auto", "required", "named"])
def test_it_calls_tools_that_it_has_never_seen_and_tells_what_they_say(client: openai.OpenAI, choice: str) -> None:
    choose = random.Random(11)
    right = 0
    for _ in range(8):
        offered = offer(choose, made_up=1.0)
        need = offered.need(choose)
        named = {"type": "function", "function": {"name": need.name}}
        fields: Any = {
            "model": "quire-demo", "messages": [{"role": "user", "content": need.question}], "temperature": 0,
            "tools": list(offered.tools), "tool_choice": named if choice == "named" else choice,
        }  # fmt: skip
        calls, content, reason = tool_calls_of(client, False, **fields)
        assert (content, reason) == ("", "stop" if choice == "named" else "tool_calls")
        assert tool_calls_of(client, True, **fields) == (calls, content, reason)
        right += [(name, json.loads(arguments)) for name, arguments in calls] == [(need.name, need.arguments)]
    assert right >= 6  # over 300 needs, it gets nine in ten


def test_it_goes_on_from_the_result_of_a_tool(client: openai.OpenAI) -> None:
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Rome?"}]
    fields: Any = {"model": "quire-demo", "tools": [WEATHER_TOOL], "temperature": 0}
    answer = client.chat.completions.create(messages=messages, **fields).choices[0].message
    assert answer.tool_calls
    messages += [answer, {"role": "tool", "tool_call_id": answer.tool_calls[0].id,
                          "content": json.dumps({"temperature": 21, "sky": "sunny"})}]  # fmt: skip
    calls, content, reason = tool_calls_of(client, True, messages=messages, **fields)
    assert (calls, reason) == ([], "stop")
    assert "sunny" in content
    assert "21" in content


class Forecast(pydantic.BaseModel):
    city: Annotated[str, pydantic.Field(max_length=12)]
    days: Annotated[int, pydantic.Field(ge=1, le=9)]
    unit: Literal["C", "F"]


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_calls_fit_their_schema_however_hot_it_runs(client: openai.OpenAI, choice: Any) -> None:
    answer = client.chat.completions.parse(
        model="quire-demo", messages=[{"role": "user", "content": "What is the weather in Rome?"}], tool_choice=choice,
        tools=[openai.pydantic_function_tool(Forecast, name="get_forecast")], temperature=1.5, n=16, seed=3,
        parallel_tool_calls=False,
    )  # fmt: skip
    calls = [call for each in answer.choices for call in each.message.tool_calls or ()]
    assert len(calls) == 16 if choice == "required" else len(calls) > 8
    for call in calls:
        assert isinstance(call.function.parsed_arguments, Forecast)  # parsed by the SDK, which validates nothing itself


@pytest.mark.parametrize("thinks", [False, True])
def test_an_answer_that_is_a_call_or_follows_a_schema(client: openai.OpenAI, thinks: bool) -> None:
    class Sum(pydantic.BaseModel):
        result: int

    for question, calls in (("What is the weather in Rome?", 1), ("Write JSON with the fields result: 42.", 0)):
        answer = client.chat.completions.parse(
            model="quire-demo", messages=[{"role": "user", "content": question}], temperature=0, response_format=Sum,
            tools=[{"type": "function", "function": {**WEATHER_TOOL["function"], "strict": True}}],
            extra_body=THINK if thinks else None,
        ).choices[0].message  # fmt: skip
        assert len(answer.tool_calls or ()) == calls
        assert isinstance(answer.parsed, Sum) != bool(calls)
        assert bool((answer.model_extra or {}).get("reasoning")) == thinks


@pytest.mark.parametrize(
    "fields", [{}, {"reasoning_effort": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}]
)
@pytest.mark.parametrize("question", ["What is 17 + 25?", "What is Quire?", "Hello!"])
def test_an_answer_that_is_not_asked_to_think_is_what_its_grammar_says(
    client: openai.OpenAI, question: str, fields: Any
) -> None:
    answer = client.chat.completions.create(
        model="quire-demo", messages=[{"role": "user", "content": question}], temperature=0,
        extra_body={"structured_outputs": {"choice": ["yes", "no"]}, **fields},
    )  # fmt: skip
    message = answer.choices[0].message
    assert message.content in ("yes", "no")
    assert not (message.model_extra or {}).get("reasoning")


def test_a_model_that_does_not_stop_thinking(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="quire-demo", messages=SUM, temperature=0, max_tokens=5, extra_body=THINK
    ).choices[0]
    assert (answer.finish_reason, answer.message.content) == ("length", None)
    assert (answer.message.model_extra or {})["reasoning"]


def spell(client: openai.OpenAI, text: str) -> list[int]:
    """The token ids of a text."""
    response = httpx.post(str(client.base_url.join("/tokenize")), json={"prompt": text})
    return list(response.json()["tokens"])
