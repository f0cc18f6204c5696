"""Every sampling field from HTTP to the engine and back: streamed and whole, with several choices and prompts."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support import logits_processors
from tests.support.stack import Stack, start_stack, stop_stack
from tests.support.waiting import eventually_now

pytestmark = pytest.mark.slow

OWN = logits_processors.__name__
PROMPT = [101, 7, 45, 300, 12, 9]
SAMPLED = {"temperature": 1.0, "ignore_eos": True, "return_token_ids": True, "max_tokens": 24}


@pytest.fixture(scope="module")
def stack(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    log = tmp_path_factory.mktemp("stack") / "log"
    stack = start_stack(
        tiny_llama, log, "--dtype", "float32", "--max-model-len", "512", "--kv-cache-memory-bytes", "64M",
        "--max-logprobs", "-1", "--logprobs-mode", "processed_logprobs", "--seed", "7", "--reasoning-parser",
        "deepseek_r1",
        "--logits-processors", f"{OWN}.OnlyMultiples", "--logits-processor-pattern", rf"{OWN}\.S\w+",
    )  # fmt: skip
    try:
        stack.wait_healthy()
        yield stack
    finally:
        code = stop_stack(stack)
    assert code == 0, log.read_text()


def unseeded(client: httpx.Client) -> list[Any]:
    """Outputs of the first requests after a start, which specify no seed."""
    body = SAMPLED | {"prompt": [PROMPT, PROMPT], "n": 2}
    answers = [client.post("/v1/completions", json=body).json()["choices"] for _ in range(2)]
    chat = SAMPLED | {"messages": [{"role": "user", "content": "Hello"}]}
    answers.append(client.post("/v1/chat/completions", json=chat).json()["choices"])
    return [choice["token_ids"] for choices in answers for choice in choices]


@pytest.fixture(scope="module")
def after_the_start() -> list[Any]:
    """Filled in when the stack has started."""
    return []


@pytest.fixture(scope="module")
def client(stack: Stack, after_the_start: list[Any]) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.url, timeout=60) as client:
        after_the_start += unseeded(client)
        yield client


def complete(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    """The choices of a completion, after checking that streaming gives the same."""
    body = SAMPLED | {"prompt": PROMPT, "seed": 5} | fields
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    choices: list[dict[str, Any]] = answer.json()["choices"]
    if not (body.get("logprobs") == -1 or body.get("prompt_logprobs") is not None):
        check_stream(client, body, choices)
    return choices


def check_stream(client: httpx.Client, body: dict[str, Any], choices: list[dict[str, Any]]) -> None:
    """Asserts that the streamed chunks make up the same choices."""
    answer = client.post("/v1/completions", json=body | {"stream": True})
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    pieces = [choice for line in lines for choice in json.loads(line)["choices"]]
    for choice in choices:
        own = [piece for piece in pieces if piece["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in own) == choice["text"]
        assert [token for piece in own for token in piece["token_ids"]] == choice["token_ids"]
        assert own[-1]["finish_reason"] == choice["finish_reason"]
        assert own[-1]["stop_reason"] == choice["stop_reason"]


def refusal(client: httpx.Client, **fields: Any) -> tuple[str, str]:
    """(parameter, message) of the refusal."""
    answer = client.post("/v1/completions", json=SAMPLED | {"prompt": PROMPT} | fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    return error["param"], error["message"]


def test_allowed_token_ids(client: httpx.Client) -> None:
    choices = complete(client, prompt=[PROMPT, PROMPT[:3]], n=2, allowed_token_ids=[40, 41, 42])
    assert len(choices) == 4
    assert {token for choice in choices for token in choice["token_ids"]} == {40, 41, 42}
    assert len({tuple(choice["token_ids"]) for choice in choices}) == 4


def test_bad_words(client: httpx.Client) -> None:
    """Of three letters, two pairs must not occur, in completions and in chats."""
    letters = {name: client.post("/tokenize", json={"prompt": name, "add_special_tokens": False}) for name in "abc"}
    ids = {name: answer.json()["tokens"] for name, answer in letters.items()}
    assert all(len(tokens) == 1 for tokens in ids.values())
    fields = {"allowed_token_ids": [tokens[0] for tokens in ids.values()], "bad_words": ["ab", "cc"], "n": 2}
    for choice in complete(client, prompt=["x", "a"], **fields):
        assert len(choice["text"]) == SAMPLED["max_tokens"]
        assert not {"ab", "cc"} & {choice["text"][at : at + 2] for at in range(len(choice["text"]))}
        assert choice["index"] < 2 or not choice["text"].startswith("b")  # the prompt's last token counts
    chat = {"messages": [{"role": "user", "content": "b"}], "seed": 3}
    text = client.post("/v1/chat/completions", json=SAMPLED | chat | fields).json()["choices"][1]["message"][
        "reasoning"
    ]
    assert "ab" not in text
    assert "cc" not in text
    assert set(text) <= set("abc")
    assert refusal(client, allowed_token_ids=ids["a"], bad_words=["a"])[0] == "allowed_token_ids"


def test_repetition_detection(client: httpx.Client) -> None:
    rules = {"max_pattern_size": 3, "min_count": 4}
    for choice in complete(client, prompt=[PROMPT] * 2, n=2, allowed_token_ids=[40, 41], repetition_detection=rules):
        if choice["finish_reason"] == "length":
            continue
        assert (choice["finish_reason"], choice["stop_reason"]) == ("repetition", "repetition_detected")
        tokens = choice["token_ids"]
        assert any(tokens[-4 * size :] == tokens[-size:] * 4 for size in (1, 2, 3))
    [choice] = complete(client, allowed_token_ids=[40], repetition_detection=rules)
    assert choice["token_ids"] == [40] * 4
    assert choice["finish_reason"] == "repetition"


def test_thinking_token_budget(client: httpx.Client) -> None:
    """The end mark is forced when the budget is used up, and what follows is the answer."""
    messages = {"messages": [{"role": "user", "content": "Hello"}]}
    mark = client.post("/tokenize", json={"prompt": "</think>", "add_special_tokens": False}).json()["tokens"]
    body = SAMPLED | messages | {"seed": 3, "n": 2, "max_tokens": 40}
    free = client.post("/v1/chat/completions", json=body).json()["choices"]
    answer = client.post("/v1/chat/completions", json=body | {"thinking_token_budget": 5}).json()
    for before, after in zip(free, answer["choices"], strict=True):
        assert after["token_ids"][:5] == before["token_ids"][:5]
        assert after["token_ids"][5 : 5 + len(mark)] == mark
        assert after["message"]["reasoning"]
        assert after["message"]["content"]
        assert len(after["token_ids"]) == 40
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 10
    streamed = body | {"thinking_token_budget": 5, "stream": True}
    lines = client.post("/v1/chat/completions", json=streamed).text.split("\n\n")[:-2]
    pieces = [choice for line in lines for choice in json.loads(line.removeprefix("data: "))["choices"]]
    for choice in answer["choices"]:
        own = [piece for piece in pieces if piece["index"] == choice["index"]]
        for name in ("reasoning", "content"):
            assert "".join(piece["delta"].get(name, "") for piece in own) == choice["message"][name]
    assert refusal(client, thinking_token_budget=5)[0] == "thinking_token_budget"


def test_logprobs_of_named_tokens(client: httpx.Client) -> None:
    fields = {"logprobs": 3, "logprob_token_ids": [40, 50], "return_tokens_as_token_ids": True, "n": 2}
    for choice in complete(client, **fields):
        for token, top in zip(choice["token_ids"], choice["logprobs"]["top_logprobs"], strict=True):
            assert set(top) == {f"token_id:{token}", "token_id:40", "token_id:50"}


def test_logprobs_are_those_that_tokens_are_drawn_from(client: httpx.Client) -> None:
    fields = {"logprobs": 5, "top_k": 3, "logit_bias": {"40": 9, "41": 9}, "temperature": 0.5}
    [choice] = complete(client, **fields, return_tokens_as_token_ids=True)
    for own, top in zip(choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"], strict=True):
        assert own > -1000
        assert sum(value > -1000 for value in top.values()) == 3, top
    [choice] = complete(client, **fields, prompt_logprobs=3)
    assert [sorted(entry)[:2] for entry in choice["prompt_logprobs"][1:]] != []
    assert all({"40", "41"} <= set(entry) for entry in choice["prompt_logprobs"][1:])


def test_logprobs_of_all_tokens(client: httpx.Client) -> None:
    [choice] = complete(client, logprobs=-1, max_tokens=3, return_tokens_as_token_ids=True)
    size = len(choice["logprobs"]["top_logprobs"][0])
    assert size > 2000
    answer = client.post(
        "/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "a"}], "logprobs": True, "top_logprobs": -1, "max_tokens": 2,
              "n": 2},
    ).json()  # fmt: skip
    assert {len(token["top_logprobs"]) for choice in answer["choices"] for token in choice["logprobs"]["content"]} == {
        size
    }
    [choice] = complete(client, prompt_logprobs=-1, max_tokens=1)
    assert len(choice["prompt_logprobs"][1]) == size
    assert refusal(client, logprobs=-1, stream=True)[0] == "stream"
    assert refusal(client, logprobs=-1, max_tokens=500, n=100)[0] == "max_tokens"
    assert refusal(client, logprobs=-2)[0] == "logprobs"


def test_stream_interval(client: httpx.Client) -> None:
    body = SAMPLED | {"prompt": PROMPT, "stream": True, "n": 2, "seed": 5, "stream_interval": 10}
    lines = client.post("/v1/completions", json=body).text.split("\n\n")[:-2]
    pieces = [choice for line in lines for choice in json.loads(line.removeprefix("data: "))["choices"]]
    for index in (0, 1):
        sizes = [len(piece["token_ids"]) for piece in pieces if piece["index"] == index]
        assert sum(sizes) == 24 and len(sizes) <= 4
        assert all(size >= 10 for size in sizes[1:-1])


def test_spaces_between_special_tokens(client: httpx.Client) -> None:
    """This vocabulary puts no spaces there, so the text is the same."""
    fields = {"skip_special_tokens": False, "allowed_token_ids": [0, 1, 2, 40]}
    [spaced], [joined] = complete(client, **fields), complete(client, spaces_between_special_tokens=False, **fields)
    assert spaced["text"] == joined["text"]


def test_the_operators_processors(client: httpx.Client) -> None:
    choices = complete(client, prompt=[PROMPT] * 2, n=2, vllm_xargs={"multiple": 11, "other": ["a", 1, 0.5]})
    assert not any(token % 11 for choice in choices for token in choice["token_ids"])
    assert any(token % 11 for choice in complete(client) for token in choice["token_ids"])


def test_the_requests_processors(client: httpx.Client) -> None:
    wanted = [{"qualname": f"{OWN}.Successor", "args": [3], "kwargs": {"count": 5}}]
    for choice in complete(client, n=2, logits_processors=wanted):
        assert choice["token_ids"][:5] == [PROMPT[-1] + 3 * step for step in range(1, 6)]
    for name in (f"{OWN}.Broken", "os.system", "x"):
        parameter, message = refusal(client, logits_processors=[name])
        assert parameter == "logits_processors"
        assert "does not allow" in message
    parameter, message = refusal(client, logits_processors=[f"{OWN}.Successor"])
    assert parameter == "logits_processors"
    assert "TypeError" in message
    assert refusal(client, vllm_xargs={"multiple": {}})[0].startswith("vllm_xargs")


def test_what_brings_no_seed_repeats_after_the_next_start(
    stack: Stack, client: httpx.Client, after_the_start: list[Any]
) -> None:
    """The gateway draws the seeds (quire/seeds.py), so its start is the one that counts."""
    assert len({tuple(token_ids) for token_ids in after_the_start}) == len(after_the_start) == 9
    before = stack.children()["gateway"]
    os.kill(before, signal.SIGKILL)
    eventually_now(lambda: stack.children().get("gateway") not in (None, before))
    stack.wait_healthy()
    with httpx.Client(base_url=stack.url, timeout=60) as again:
        assert unseeded(again) == after_the_start
