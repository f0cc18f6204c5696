"""Engines are added and removed while a stack serves, and no stream is lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from quire.errors import FailedPrecondition, InvalidRequest, Unavailable
from quire.supervision import ScaleAnswer, ScaleRequest, ask_supervisor
from tests.support.stack import Stack, start_stack, stop_stack
from tests.support.tiny_models import make_model
from tests.support.waiting import eventually_now, under_way

pytestmark = pytest.mark.slow

SECONDS = 90.0
STREAMS = 6


@pytest.fixture(scope="module")
def one(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack with one engine."""
    running = start_stack(
        tiny_llama, tmp_path_factory.mktemp("stack") / "log", "--dtype", "float32", "--max-model-len", "1024",
        "--kv-cache-memory-bytes", "32M", "--cpu-threads", "1", "--served-model-name", "tiny",
    )  # fmt: skip
    try:
        running.wait_healthy()
        yield running
    finally:
        code = stop_stack(running)
    assert code == 0, running.log.read_text()


def environment(stack: Stack) -> Mapping[str, str]:
    """Environment variables of the gateway process."""
    told = Path(f"/proc/{stack.children()['gateway']}/environ").read_bytes().split(b"\0")
    return dict(entry.decode().split("=", 1) for entry in told if b"=" in entry)


def scale(stack: Stack, size: int | None, drain_seconds: float = 30.0) -> ScaleAnswer:
    return asyncio.run(ask_supervisor(ScaleRequest(size, drain_seconds, SECONDS), environment(stack)))


def workers(stack: Stack) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{stack.url}/fleet", timeout=SECONDS) as response:
        found: list[dict[str, Any]] = json.load(response)["workers"]
    return found


def complete(stack: Stack, number: int, max_tokens: int = 300) -> str:
    body = {"model": "tiny", "prompt": [number + 3] * 8, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        f"{stack.url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        text: str = json.load(response)["choices"][0]["text"]
    return text


def test_engines_come_and_go_under_load(one: Stack) -> None:
    """Only one change runs at a time, a restarted router knows the engines, and streams of removed engines continue.

    The two engines that are removed in one change have too little time to finish their streams. Neither receives the
    other's: all of them continue on the one that stays.
    """

    async def both() -> list[Any]:
        asked = [ask_supervisor(ScaleRequest(3, 30.0, SECONDS), environment(one)) for _ in range(2)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        return sorted(answers, key=lambda answer: isinstance(answer, Exception))

    with ThreadPoolExecutor(STREAMS) as pool:
        expected = list(pool.map(partial(complete, one), range(STREAMS)))
        during = [pool.submit(complete, one, number) for number in range(STREAMS)]
        done, refused = asyncio.run(both())
        assert done == ScaleAnswer(3)
        assert isinstance(refused, Unavailable)
        assert [answer.result(SECONDS) for answer in during] == expected
        wait_for_ready(one, [0, 1, 2])
        router = one.children()["router"]
        os.kill(router, signal.SIGKILL)
        eventually_now(lambda: one.children().get("router") not in (None, router))
        wait_for_ready(one, [0, 1, 2])
        during = under_way(partial(pool.submit, complete, one), STREAMS, partial(all_run, one))
        assert scale(one, 1, drain_seconds=0.1) == ScaleAnswer(1)
        assert [answer.result(SECONDS) for answer in during] == expected
    wait_for_ready(one, [0])
    assert scale(one, None) == ScaleAnswer(1)
    assert [command for _, command in one.processes()].count("engine") == 1
    assert complete(one, 0) == expected[0]


def all_run(stack: Stack) -> bool:
    return all(worker["running_sequences"] for worker in workers(stack))


def wait_for_ready(stack: Stack, ranks: list[int]) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        known = workers(stack)
        ready = sorted(worker["data_parallel_rank"] or 0 for worker in known if worker["state"] == "ready")
        if ready == ranks and len(known) == len(ranks):  # no worker that has left is listed any more
            return
        assert time.monotonic() < deadline, known
        time.sleep(0.1)


@pytest.mark.parametrize("size", [0, -1, 65])
def test_what_cannot_be_is_refused(one: Stack, size: int) -> None:
    with pytest.raises(InvalidRequest, match="must be 1 to 64"):
        scale(one, size)


def test_ranks_that_compute_experts_together_start_anew(tiny_llama: Path, tmp_path: Path) -> None:
    """No rank serves during the change; their streams continue afterwards."""
    folder = make_model(tmp_path / "model", "mixtral", vocab_size=8192, max_position_embeddings=1024)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).symlink_to(tiny_llama / name)
    running = start_stack(
        folder, tmp_path / "log", "--dtype", "float32", "--max-model-len", "1024", "--kv-cache-memory-bytes", "32M",
        "--cpu-threads", "1", "--served-model-name", "tiny", "-dp", "2", "--enable-expert-parallel",
    )  # fmt: skip
    try:
        running.wait_healthy()
        wait_for_ready(running, [0, 1])
        with ThreadPoolExecutor(4) as pool:
            expected = list(pool.map(partial(complete, running, max_tokens=200), range(4)))
            ask = partial(pool.submit, complete, running, max_tokens=200)
            during = under_way(ask, 4, partial(all_run, running))
            assert scale(running, 3, drain_seconds=0.1) == ScaleAnswer(3)
            assert [answer.result(SECONDS) for answer in during] == expected
        wait_for_ready(running, [0, 1, 2])
    finally:
        code = stop_stack(running)
    assert code == 0, running.log.read_text()


def test_without_a_supervisor() -> None:
    with pytest.raises(FailedPrecondition, match="not started by `quire serve`"):
        asyncio.run(ask_supervisor(ScaleRequest(2), {}))
