"""`quire serve` without a model: what a new user sees first."""

from __future__ import annotations

import json
from collections.abc import Iterator

import openai
import pytest

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
