"""However many tokens of an answer arrive at once, each API reports the same, in the order that its clients expect.

How parsers handle pieces is tested in tests/conformance/test_answer_parsers.py.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

import pytest
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from quire.options.reasoning import ReasoningOptions
from quire.options.tools import ToolOptions
from tests.gateway.conftest import Replicas, StartReplicas
from tests.gateway.endpoints import test_messages, test_responses
from tests.support.gateway_stack import Gateway

pytestmark = pytest.mark.asyncio(loop_scope="module")

Told = dict[str, Any]
OPTIONS: Told = {
    "reasoning": ReasoningOptions(reasoning_parser="deepseek_r1"), "enable_scale_out": True,
    "tools": ToolOptions(tool_call_parser="hermes", enable_auto_tool_choice=True),
}  # fmt: skip
F = '<tool_call>\n{"name": "f", "arguments": {"ü": "<tool_call>"}}\n</tool_call>'
G = '<tool_call>\n{"name": "g", "arguments": {}}\n</tool_call>'
THOUGHT = "why §?\n</think>\n\n"
# They end with the stop string §, at their length limit, or in the middle of something.
ANSWERS = {
    "text": f"{THOUGHT}so é 🙂 <tool §more",
    "text to the stop string": f"{THOUGHT}so é§",
    "calls": f"{THOUGHT}I look.\n{F}\n{G}§",
    "a call first": f"</think>{F} and then\n{G}\nso it is.§",
    "calls to the end": f"{THOUGHT}{F}\n{G}",
    "half a call": f"{THOUGHT}{F}\n{G[:-30]}",
    "text behind calls": f"{THOUGHT}<{F}\n{G}\n so <",
    "thought alone": "hm, § hm\n",
    "unpaired surrogate": f"{THOUGHT}so 🙂",
    "nothing": "§",
}
MOST = 400
USAGE: Told = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
MANY: Told = {"max_tokens": MOST, "n": len(ANSWERS), "temperature": 1.0, "stop": ["§"]}
CHAT: Told = {
    "messages": [{"role": "user", "content": "A"}], "logprobs": True, "top_logprobs": 1, "return_token_ids": True,
    "tools": [{"type": "function", "function": {"name": each, "parameters": {"type": "object"}}} for each in "fg"],
    "echo": True, **MANY, **USAGE,
}  # fmt: skip
COMPLETION: Told = {"prompt": "A", "return_token_ids": True, **MANY, **USAGE}
TEXTS: Mapping[str, tuple[str, Told]] = {
    "completions": ("/v1/completions", COMPLETION | {"stop": ["</", "§"], "logprobs": 1}),
    "completions, echo": ("/v1/completions", COMPLETION | {"echo": True, "include_stop_str_in_output": True}),
    "generate": (
        "/inference/v1/generate",
        {"token_ids": [65], "output_mode": "text", "sampling_params": MANY | {"logprobs": 1}, **USAGE},
    ),
}
MESSAGE: Told = {"max_tokens": MOST, "stop_sequences": ["§"], "tools": test_messages.TOOLS}
RESPONSE: Told = {
    "max_output_tokens": MOST, "stop": ["§"], "tools": test_responses.TOOLS, "top_logprobs": 1,
    "include": ["message.output_text.logprobs"],
}  # fmt: skip


def some_of(seed: int) -> Callable[[], int]:
    drawn = random.Random(seed)
    return lambda: drawn.choice((1, 1, 2, 5, 30))


# How many tokens arrive in each next piece.
CUTS: Sequence[Callable[[], int]] = (lambda: 1, lambda: 1000, some_of(0))


async def differently_cut(replicas: Replicas, *names: str) -> AsyncIterator[Gateway]:
    """Yields the gateway once for each way to cut the tokens of these answers into pieces."""
    gateway, state = replicas.gateway, replicas.routers[0].state
    tokens = {name: (await gateway.post("/tokenize", {"prompt": ANSWERS[name]})).json()["tokens"] for name in names}
    state.outputs = [ids[:-2] if name == "unpaired surrogate" else ids for name, ids in tokens.items()]
    for state.piece in CUTS:
        yield gateway


async def whole(gateway: Gateway, path: str, asked: Told) -> Told:
    response = await gateway.post(path, {name: value for name, value in asked.items() if name != "stream_options"})
    assert response.status_code == 200, response.text
    return dict(response.json())


async def chunks_of(gateway: Gateway, path: str, asked: Told) -> tuple[list[Told], Told]:
    """(chunks, final usage), checking that usage never decreases and that each choice ends once, with nothing after."""
    *chunks, last, done = await gateway.events(path, asked)
    assert done == "[DONE]"
    counts = [chunk["usage"]["completion_tokens"] for chunk in (*chunks, last)]
    assert counts == sorted(counts)
    assert counts[-1] == counts[-2]
    ends = {choice["index"]: choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]}
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"] if choice["finish_reason"]]
    assert sorted(reasons) == sorted(ends.values()), "another end, or something behind one"
    return chunks, last["usage"]


def chat_put_together(chunks: list[Told]) -> tuple[list[Told], list[tuple[Any, ...]]]:
    """(choices as OpenAI's client assembles them, calls that it reports as done)."""
    state = ChatCompletionStreamState()
    calls: list[tuple[Any, ...]] = []
    reasoning, token_ids, stops = ({index: start() for index in range(len(ANSWERS))} for start in (str, list, list))
    for chunk in chunks:
        events = state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
        done = (event for event in events if event.type == "tool_calls.function.arguments.done")
        calls += [(event.name, event.arguments) for event in done]
        for choice in chunk["choices"]:
            reasoning[choice["index"]] += choice["delta"].get("reasoning", "")
            token_ids[choice["index"]] += choice.get("token_ids", [])
            stops[choice["index"]] += [choice["stop_reason"]] if choice["finish_reason"] else []
    choices = [choice.model_dump() for choice in state.current_completion_snapshot.choices]
    for choice in choices:
        index = choice["index"]
        choice["message"]["reasoning"] = reasoning[index]
        choice["token_ids"], [choice["stop_reason"]] = token_ids[index], stops[index]
    return list(map(plain, choices)), sorted(calls)


def plain(choice: Told) -> Told:
    """The content of a choice without call ids and empty fields."""
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    said = {name: message.get(name) or "" for name in ("role", "content", "reasoning")}
    told = {name: choice[name] for name in ("index", "finish_reason", "stop_reason", "token_ids")}
    return said | told | {"calls": calls, "logprobs": choice["logprobs"] and choice["logprobs"]["content"]}


def texts_put_together(chunks: list[Told]) -> list[Told]:
    found: dict[int, Told] = {}
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        own = found.setdefault(choice["index"], {"text": "", "token_ids": [], "logprobs": {}})
        own["text"] += choice["text"]
        own["token_ids"] += choice.get("token_ids", ())
        for name, values in (choice["logprobs"] or {}).items():
            own["logprobs"].setdefault(name, []).extend(values)
        own["end"] = (choice["finish_reason"], choice.get("stop_reason"))
    return [found[index] for index in sorted(found)]


async def test_chats(start_replicas: StartReplicas) -> None:
    async with start_replicas(1, **OPTIONS) as replicas:
        first = None
        async for gateway in differently_cut(replicas, *ANSWERS):
            body = await whole(gateway, "/v1/chat/completions", CHAT)
            choices = list(map(plain, body["choices"]))
            first = first or choices
            assert choices == first
            for interval in (1, 4):
                asked = CHAT | {"stream_interval": interval}
                chunks, usage = await chunks_of(gateway, "/v1/chat/completions", asked)
                found, calls = chat_put_together(chunks)
                assert found == choices
                assert calls == sorted(call for choice in choices for call in choice["calls"])
                assert usage == body["usage"]


@pytest.mark.parametrize("api", TEXTS)
async def test_texts(start_replicas: StartReplicas, api: str) -> None:
    path, asked = TEXTS[api]
    async with start_replicas(1, **OPTIONS) as replicas:
        first = None
        async for gateway in differently_cut(replicas, *ANSWERS):
            body = await whole(gateway, path, asked)
            choices = [
                {"text": choice["text"], "token_ids": choice["token_ids"], "logprobs": choice["logprobs"] or {},
                 "end": (choice["finish_reason"], choice["stop_reason"])}
                for choice in body["choices"]
            ]  # fmt: skip
            first = first or choices
            assert choices == first
            for fields in ({},) if api == "generate" else ({}, {"stream_interval": 4}):
                chunks, usage = await chunks_of(gateway, path, asked | fields)
                assert (texts_put_together(chunks), usage) == (choices, body["usage"])


async def test_messages_of_anthropics(start_replicas: StartReplicas) -> None:
    """Blocks come in the order in which the model wrote them, whether streamed or whole."""
    async with start_replicas(1, **OPTIONS) as replicas:
        for name in ANSWERS:
            first = None
            async for gateway in differently_cut(replicas, name):
                body = await test_messages.answer(gateway, **MESSAGE)
                end = {"stop_reason": body["stop_reason"], "stop_sequence": body["stop_sequence"]}
                told = [without_id(block) for block in body["content"]], end, body["usage"]
                first = first or told
                assert told == first, name
                events = await test_messages.stream(gateway, **MESSAGE)
                names = [name for name, _ in events if not name.startswith("content_block")]
                assert names == ["message_start", "message_delta", "message_stop"]
                blocks = [without_id(block) for block in test_messages.put_together(events)]
                assert (blocks, events[-2][1]["delta"], events[-2][1]["usage"]) == told


def without_id(block: Told) -> Told:
    return {name: value for name, value in block.items() if name != "id"}


async def test_responses_of_openais(start_replicas: StartReplicas) -> None:
    """Logprobs cover the text's own tokens, not those of a call beside it."""
    async with start_replicas(1, **OPTIONS) as replicas:
        for name in ANSWERS:
            first = None
            async for gateway in differently_cut(replicas, name):
                body = await test_responses.answer(gateway, **RESPONSE)
                told = test_responses.without_ids(body["output"]), body["status"], body["usage"]
                first = first or told
                assert told == first, name
                for part in (part for item in body["output"] if item["type"] == "message" for part in item["content"]):
                    scored = bytes(byte for score in part["logprobs"] for byte in score["bytes"]).decode(
                        errors="replace"
                    )
                    assert scored.removesuffix("§").strip() == part["text"].strip()
                events = await test_responses.stream(gateway, **RESPONSE)
                assert test_responses.put_together(events) == events[-1]["response"]["output"]
                end = events[-1]["response"]
                assert (test_responses.without_ids(end["output"]), end["status"], end["usage"]) == told
