"""Chats with a reasoning model: text, usage and what the services are told, over real sockets."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.services.tokenizers import Tokenizers
from quire.options.reasoning import ReasoningOptions
from quire.v1 import tokenizer_pb2
from tests.gateway.conftest import Replicas, StartReplicas

pytestmark = pytest.mark.asyncio(loop_scope="module")

QWEN = {"reasoning": ReasoningOptions("qwen3")}
CHAT = {"messages": [{"role": "user", "content": "A"}], "max_tokens": 40}
# The answer continues the model's thinking.
OPEN = {
    "messages": [{"role": "user", "content": "A"}, {"role": "assistant", "content": "<think>\nI "}],
    "add_generation_prompt": False,
    "continue_final_message": True,
}
STREAM = {"stream_options": {"include_usage": True}}


async def says(replicas: Replicas, *texts: str) -> None:
    """Makes the model output these texts, one per choice."""
    tokens = [(await replicas.gateway.post("/tokenize", {"prompt": text})).json()["tokens"] for text in texts]
    replicas.routers[0].state.outputs = tokens


async def answers(replicas: Replicas, **fields: Any) -> tuple[list[tuple[str, str]], int]:
    """((reasoning, content) of each choice, reasoning tokens), after checking that streaming gives the same."""
    body = CHAT | fields
    whole = (await replicas.gateway.post("/v1/chat/completions", body)).json()
    messages = [choice["message"] for choice in whole["choices"]]
    found = [(message["reasoning"] or "", message["content"] or "") for message in messages]
    *chunks, usage, _ = await replicas.gateway.events("/v1/chat/completions", body | STREAM)
    for index, expected in enumerate(found):
        deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert tuple("".join(delta.get(name, "") for delta in deltas) for name in ("reasoning", "content")) == expected
    assert usage["usage"] == whole["usage"]
    return found, whole["usage"]["completion_tokens_details"]["reasoning_tokens"]


async def test_thinking_that_the_prompt_has_opened(start_replicas: StartReplicas) -> None:
    """One of three choices never closes its thinking. In this vocabulary every token is one byte."""
    async with start_replicas(1, **QWEN) as replicas:
        await says(replicas, "wonder.\n</think>\n\nso", "hm</think>no", "think on")
        expected = [("wonder.", "so"), ("hm", "no"), ("think on", "")]
        tokens = len("wonder.\n") + len("hm") + len("think on")
        assert await answers(replicas, **OPEN, n=3, temperature=1.0) == (expected, tokens)
        generation = replicas.routers[0].state.started[-1]
        assert not generation.sampling.HasField("reasoning"), "nothing there depends on it"


async def test_thinking_that_the_answer_opens(start_replicas: StartReplicas) -> None:
    async with start_replicas(1, **QWEN) as replicas:
        await says(replicas, "\n<think>\nwhy</think>\nso", "so <think>")
        assert await answers(replicas, n=2, temperature=1.0) == ([("why", "so"), ("", "so <think>")], len("\nwhy"))


async def test_stop_strings_end_the_answer_and_not_the_thinking(start_replicas: StartReplicas) -> None:
    async with start_replicas(1, **QWEN) as replicas:
        await says(replicas, "one, two\n</think>\n\nthree, four")
        assert (await answers(replicas, **OPEN, stop=[",", "\n"]))[0] == [("one, two", "three")]
        await says(replicas, "three, four")
        assert (await answers(replicas, stop=[",", "\n"]))[0] == [("", "three")]


async def test_reasoning_that_is_not_wanted_is_left_out(start_replicas: StartReplicas) -> None:
    async with start_replicas(1, **QWEN) as replicas:
        await says(replicas, "one</think>two")
        assert await answers(replicas, **OPEN, include_reasoning=False) == ([("", "two")], 3)
        whole = (await replicas.gateway.post("/v1/chat/completions", CHAT | OPEN | {"include_reasoning": False})).json()
        assert whole["choices"][0]["message"]["reasoning"] is None
        await says(replicas, "one and")
        whole = (await replicas.gateway.post("/v1/chat/completions", CHAT | OPEN | {"include_reasoning": False})).json()
        assert whole["choices"][0]["message"]["content"] is None


@pytest.mark.parametrize(
    ("said", "fields", "told"),
    [
        ("one</think>two", OPEN, "two"),
        ("one and", OPEN, ""),
        ("<think>one</think>\n\ntwo", {}, "\n\ntwo"),
        ("<th>two", {}, "<th>two"),
    ],
)
async def test_nor_do_log_probabilities_tell_of_it(
    start_replicas: StartReplicas, said: str, fields: dict[str, Any], told: str
) -> None:
    async with start_replicas(1, **QWEN) as replicas:
        await says(replicas, said)
        body = CHAT | fields | {"include_reasoning": False, "logprobs": True}
        whole = (await replicas.gateway.post("/v1/chat/completions", body)).json()["choices"][0]
        assert "".join(entry["token"] for entry in whole["logprobs"]["content"]) == told
        *chunks, _ = await replicas.gateway.events("/v1/chat/completions", body)
        streamed = [
            entry
            for chunk in chunks
            for choice in chunk["choices"]
            for entry in (choice["logprobs"] or {}).get("content", ())
        ]
        assert streamed == whole["logprobs"]["content"]


@pytest.mark.parametrize(
    ("fields", "may_think"),
    [
        ({}, True),  # the template decides
        ({"reasoning_effort": "low"}, True),
        ({"reasoning_effort": "none"}, False),
        ({"chat_template_kwargs": {"enable_thinking": False}}, False),
        ({"chat_template_kwargs": {"thinking": False}}, False),
        ({"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}}, True),
        (OPEN | {"reasoning_effort": "none"}, True),
    ],
)
async def test_a_constraint_holds_from_the_first_token_where_thinking_is_off(
    start_replicas: StartReplicas, fields: dict[str, Any], may_think: bool
) -> None:
    async with start_replicas(1, **QWEN) as replicas:
        body = CHAT | {"structured_outputs": {"choice": ["yes", "no"]}} | fields
        assert (await replicas.gateway.post("/v1/chat/completions", body)).status_code == 200
        assert replicas.routers[0].state.started[-1].sampling.HasField("reasoning") == may_think


async def test_a_model_that_does_not_think_tells_of_no_reasoning(start_replicas: StartReplicas) -> None:
    async with start_replicas(1) as replicas:
        await says(replicas, "<think>one</think>two")
        whole = (await replicas.gateway.post("/v1/chat/completions", CHAT)).json()
        message = whole["choices"][0]["message"]
        assert (message["content"], message["reasoning"]) == ("<think>one</think>two", None)
        assert "completion_tokens_details" not in whole["usage"]


@pytest.mark.parametrize(
    ("of_server", "fields", "told", "default"),
    [
        (None, {}, {"enable_thinking": True}, "medium"),
        ("", {}, {"enable_thinking": True}, ""),
        ("medium", {}, {"reasoning_effort": "medium", "enable_thinking": True}, ""),
        (
            None,
            {"reasoning_effort": "low"},
            {"reasoning_effort": "low", "enable_thinking": True, "thinking": True},
            "medium",
        ),
    ],
)
async def test_the_tokenizer_service_knows_whether_an_effort_was_asked_for(
    start_replicas: StartReplicas,
    monkeypatch: pytest.MonkeyPatch,
    of_server: str | None,
    fields: dict[str, Any],
    told: dict[str, Any],
    default: str,
) -> None:
    asked: list[tokenizer_pb2.RenderChatRequest] = []
    call = Tokenizers.call

    async def listening(tokenizers: Tokenizers, method: str, request: Any, seconds: float | None = None) -> Any:
        asked.extend([request] if method == "RenderChat" else [])
        return await call(tokenizers, method, request, seconds)

    monkeypatch.setattr(Tokenizers, "call", listening)
    options = {"reasoning": ReasoningOptions(reasoning_effort=of_server)}
    async with start_replicas(1, **options, default_chat_template_kwargs={"enable_thinking": True}) as replicas:
        await says(replicas, "so")
        for path in ("/v1/chat/completions", "/tokenize"):
            assert (await replicas.gateway.post(path, CHAT | fields)).status_code == 200
    assert len(asked) == 2
    for request in asked:
        assert (json.loads(request.template_kwargs_json), request.default_reasoning_effort) == (told, default)


async def test_an_effort_that_does_not_exist_is_refused(start_replicas: StartReplicas) -> None:
    async with start_replicas(1) as replicas:
        answer = await replicas.gateway.post("/v1/chat/completions", CHAT | {"reasoning_effort": "huge"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "reasoning_effort")
