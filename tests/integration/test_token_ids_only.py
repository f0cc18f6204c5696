"""A stack without a tokenizer, on a model folder without its files: token ids or embeddings in, token ids out."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
import torch
from safetensors.torch import load_file, save

from tests.support.router_client import connect
from tests.support.stack import ROOT, Stack, free_port, quire, start_stack, stop_stack

pytestmark = pytest.mark.slow

PROMPT = [101, 7, 45, 300, 12, 9]
FIELDS: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 24, "ignore_eos": True, "temperature": 0}
START_SECONDS = 60.0


@pytest.fixture(scope="module")
def stack(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("bare") / "tiny"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tiny_llama / name, folder)
    running = start_stack(
        folder, tmp_path_factory.mktemp("stack") / "log", "--skip-tokenizer-init",
        "--enable-prompt-embeds", "--dtype", "float32", "--enable-prompt-tokens-details",
        "--served-model-name", "tiny", "--max-model-len", "1024", "--kv-cache-memory-bytes", "64M",
    )  # fmt: skip
    try:
        running.wait_healthy()
        yield running
    finally:
        code = stop_stack(running)
    assert code == 0, running.log.read_text()


@pytest.fixture
def client(stack: Stack) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=stack.url, timeout=60) as client:
        yield client


Embed = Callable[[list[int]], str]


@pytest.fixture(scope="module")
def embed(tiny_llama: Path) -> Embed:
    """Makes the embeddings of token ids in the form that requests use."""
    weights = load_file(tiny_llama / "model.safetensors")["model.embed_tokens.weight"]
    return lambda token_ids: as_base64(weights[token_ids])


def as_base64(values: torch.Tensor) -> str:
    return base64.b64encode(save({"prompt_embeds": values})).decode()


def choices(client: httpx.Client, **fields: Any) -> list[dict[str, Any]]:
    answer = client.post("/v1/completions", json=FIELDS | fields)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["choices"]
    return found


def streamed(client: httpx.Client, **fields: Any) -> dict[int, list[int]]:
    """The streamed token ids of each choice."""
    answer = client.post("/v1/completions", json=FIELDS | fields | {"stream": True})
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    found: dict[int, list[int]] = {}
    for line in lines:
        for choice in json.loads(line)["choices"]:
            assert choice["text"] == ""
            found.setdefault(choice["index"], []).extend(choice["token_ids"])
    return found


def test_no_tokenizer_service_is_started_and_the_summary_and_health_say_so(stack: Stack, client: httpx.Client) -> None:
    assert stack.children().keys() == {"engine", "router", "gateway"}
    summary = stack.log.read_text()
    assert re.search(r"tokenizer +none \(--skip-tokenizer-init\)", summary)
    answer = client.get("/health")
    assert answer.status_code == 200
    assert "--skip-tokenizer-init" in answer.text
    command = re.search(r"try +curl .* -d '(.*)'", summary)
    assert command  # the printed example works
    assert client.post("/v1/completions", json=json.loads(command[1])).status_code == 200


def test_token_ids_in_and_out(client: httpx.Client) -> None:
    (choice,) = choices(client)
    assert choice["text"] == ""
    assert choice["prompt_token_ids"] == PROMPT
    assert len(choice["token_ids"]) == 24
    assert choice["finish_reason"] == "length"
    assert streamed(client) == {0: choice["token_ids"]}
    stop = choice["token_ids"][5]
    (stopped,) = choices(client, stop_token_ids=[stop])
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", stop)
    assert stopped["token_ids"] == choice["token_ids"][: len(stopped["token_ids"])]


def test_several_choices_and_prompts(client: httpx.Client) -> None:
    fields = {"temperature": 1.0, "seed": 5, "n": 3, "prompt": [PROMPT, PROMPT[:3]]}
    found = choices(client, **fields)
    assert [choice["index"] for choice in found] == list(range(6))
    assert len({tuple(choice["token_ids"]) for choice in found}) == 6
    assert streamed(client, **fields) == {choice["index"]: choice["token_ids"] for choice in found}
    assert [choice["prompt_token_ids"] for choice in found] == [PROMPT] * 3 + [PROMPT[:3]] * 3
    (best, second) = choices(client, use_beam_search=True, n=2)
    assert len(best["token_ids"]) == len(second["token_ids"]) == 24
    assert best["token_ids"] != second["token_ids"]


def test_logprobs_are_told_by_id(client: httpx.Client) -> None:
    (choice,) = choices(client, logprobs=2, prompt_logprobs=1, max_tokens=3)
    assert choice["logprobs"]["tokens"] == [f"token_id:{token_id}" for token_id in choice["token_ids"]]
    assert all(len(top) == 2 for top in choice["logprobs"]["top_logprobs"])
    first, *others = choice["prompt_logprobs"]
    assert first is None
    for token_id, position in zip(PROMPT[1:], others, strict=True):
        assert position[str(token_id)]["decoded_token"] == f"token_id:{token_id}"
    token_ids = choices(client, max_tokens=3)[0]["token_ids"]
    answer = client.post("/v1/completions", json=FIELDS | {"logprobs": 2, "max_tokens": 3, "stream": True})
    assert [f"token_id:{token_id}" in answer.text for token_id in token_ids] == [True] * 3


def test_embeddings_are_prompts(client: httpx.Client, embed: Embed) -> None:
    """Embeddings give the same output as their token ids: one or several, before other prompts, streamed and whole."""
    ids, other = PROMPT * 6, PROMPT[::-1]
    expected = [choice["token_ids"] for choice in choices(client, prompt=[ids, other, PROMPT])]
    (one,) = choices(client, prompt="", prompt_embeds=embed(ids))
    assert (one["token_ids"], one["prompt_token_ids"]) == (expected[0], None)
    fields = {"prompt": PROMPT, "prompt_embeds": [embed(ids), embed(other)]}
    assert [choice["token_ids"] for choice in choices(client, **fields)] == expected
    assert streamed(client, **fields) == dict(enumerate(expected))
    sampled = {"temperature": 1.0, "seed": 3, "top_k": 20, "n": 2}
    found = choices(client, prompt=None, prompt_embeds=embed(ids), **sampled, logprobs=1)
    assert [each["token_ids"] for each in found] == [
        each["token_ids"] for each in choices(client, prompt=ids, **sampled)
    ]
    beams = {"use_beam_search": True, "n": 2, "max_tokens": 6}
    found = choices(client, prompt="", prompt_embeds=embed(ids), **beams)
    assert [each["token_ids"] for each in found] == [each["token_ids"] for each in choices(client, prompt=ids, **beams)]


def test_equal_embeddings_are_found_in_the_cache_and_no_others(client: httpx.Client, embed: Embed) -> None:
    for salt, ids, cached in (("a", 5, 0), ("a", 5, 48), ("b", 5, 0), ("a", 6, 0)):
        body = FIELDS | {"prompt": "", "prompt_embeds": embed([ids] * 50), "cache_salt": salt}
        usage = client.post("/v1/completions", json=body).json()["usage"]
        assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (50, cached)


@pytest.mark.parametrize(
    ("fields", "parameter", "message"),
    [
        ({"prompt_embeds": "!"}, "prompt_embeds", "not valid base64"),
        ({"prompt_embeds": {"a": 1}}, "prompt_embeds", "Expected"),
        ({"prompt_embeds": [""]}, "prompt_embeds", "not a safetensors file"),
        ({"prompt_embeds": []}, "prompt", "prompt is empty"),
        ({}, "prompt", "prompt is empty"),
        ({"prompt_embeds": ["x"], "prompt_logprobs": 1}, "prompt_logprobs", "not tokens"),
        ({"prompt_embeds": ["x"] * 2000}, "prompt", "2000 prompts"),
    ],
)
def test_embeddings_that_are_none(
    client: httpx.Client, fields: dict[str, Any], parameter: str | None, message: str
) -> None:
    answer = client.post("/v1/completions", json=FIELDS | {"prompt": None} | fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert message in error["message"]
    assert error["param"] == parameter


def test_values_that_are_none_and_too_many(client: httpx.Client) -> None:
    wrong = torch.zeros(3, 256)
    wrong[1, 7] = torch.inf
    for values, message in (
        (wrong, "[1, 7]"),
        (torch.zeros(3, 255), "hidden size is 256"),
        (torch.zeros(1025, 256), "maximum context length is 1024"),
        (torch.zeros(1010, 256), "max_tokens is 24"),
    ):
        answer = client.post("/v1/completions", json=FIELDS | {"prompt": "", "prompt_embeds": as_base64(values)})
        assert answer.status_code == 400, answer.text
        assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "fields", "parameter"),
    [
        ("/v1/completions", {"prompt": "a text"}, "prompt"),
        ("/v1/completions", {"prompt": ["a text", "another"]}, "prompt"),
        ("/v1/completions", FIELDS | {"stop": "end"}, "stop"),
        ("/v1/completions", FIELDS | {"bad_words": ["no"]}, "bad_words"),
        ("/v1/completions", FIELDS | {"echo": True}, "echo"),
        ("/v1/completions", FIELDS | {"guided_regex": "a+"}, "guided_regex"),
        ("/v1/completions", FIELDS | {"response_format": {"type": "json_object"}}, "response_format"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}, "messages"),
        ("/tokenize", {"prompt": "a text"}, None),
        ("/detokenize", {"tokens": [1, 2]}, None),
    ],
)
def test_what_needs_text_is_refused(
    client: httpx.Client, path: str, fields: dict[str, Any], parameter: str | None
) -> None:
    answer = client.post(path, json=fields)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert "--skip-tokenizer-init" in error["message"]
    assert error["param"] == parameter


@dataclass
class TwoRouters:
    """A gateway with two routers of its own, which use the stack's engine."""

    url: str
    engine: str
    routers: dict[int, subprocess.Popen[bytes]]  # by port


@pytest.fixture
def two_routers(stack: Stack) -> Iterator[TwoRouters]:
    engine = re.search(r"engine +gRPC (\S+)", stack.log.read_text())
    assert engine
    ports, port = [free_port(), free_port()], free_port()
    addresses = [word for each in ports for word in ("--router-address", f"127.0.0.1:{each}")]
    routers = {
        each: subprocess.Popen(quire("router", "--port", str(each), "--workers", engine[1]), cwd=ROOT) for each in ports
    }
    gateway = subprocess.Popen(quire("gateway", "--skip-tokenizer-init", "--port", str(port), *addresses), cwd=ROOT)
    try:
        yield TwoRouters(f"http://127.0.0.1:{port}", engine[1], routers)
    finally:
        for process in (gateway, *routers.values()):
            process.kill()
            process.wait()


async def test_streams_survive_the_loss_of_a_router(two_routers: TwoRouters, embed: Embed) -> None:
    """Streams with embeddings move to the other router with their embeddings."""
    async with httpx.AsyncClient(base_url=two_routers.url, timeout=60) as client:
        async with asyncio.timeout(START_SECONDS):
            await asyncio.gather(*(_wait_router(port, two_routers.engine) for port in two_routers.routers))
            while not await _is_healthy(client):
                await asyncio.sleep(0.1)
        # Limited to a few likely tokens: among thousands of equally likely ones, the last bit of a logit would decide.
        bodies = [
            FIELDS | {"prompt": [*PROMPT, seed], "max_tokens": 200, "temperature": seed % 2, "seed": seed, "top_k": 20}
            for seed in range(8)
        ]
        for body in bodies[4:]:
            body |= {"prompt": "", "prompt_embeds": embed(body["prompt"])}
        undisturbed = await asyncio.gather(*(_tokens(client, body) for body in bodies))
        started = [asyncio.Event() for _ in bodies]
        running = [asyncio.create_task(_tokens(client, *each)) for each in zip(bodies, started, strict=True)]
        await asyncio.gather(*(event.wait() for event in started))
        next(iter(two_routers.routers.values())).kill()
        assert await asyncio.gather(*running) == undisturbed
        metrics = (await client.get("/metrics")).text
    moved = re.search(r"quire_gateway_streams_moved_total\S* (\d+)", metrics)
    assert moved
    assert int(moved[1]) > 0


async def _wait_router(port: int, engine: str) -> None:
    """Waits until a router that is starting has the engine."""
    async with connect(port) as router:
        while True:
            with contextlib.suppress(grpc.aio.AioRpcError):
                await router.wait_ready(engine)
                return
            await asyncio.sleep(0.1)


async def _is_healthy(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).status_code == 200
    except httpx.TransportError:
        return False


async def _tokens(client: httpx.AsyncClient, body: dict[str, Any], started: asyncio.Event | None = None) -> list[int]:
    found: list[int] = []
    async with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: {"):
                (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                found += choice["token_ids"]
                if started and len(found) > 5:
                    started.set()
    return found
