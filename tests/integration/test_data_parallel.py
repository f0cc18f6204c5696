"""Two nodes: a first one with API, router and a rank of its own, and a headless one, found by --data-parallel-rpc-port.

Both are stacks of this machine. The first has --api-server-count 2.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.engine_process import free_port
from tests.support.stack import Stack, start_stack, stop_stack
from tests.support.waiting import under_way

pytestmark = pytest.mark.slow

SECONDS = 90.0
WRITE_SECONDS = 0.5  # each gateway shares its metrics at least this often
OPTIONS = ("--dtype", "float32", "--max-model-len", "1024", "--kv-cache-memory-bytes", "32M", "--cpu-threads", "1",
           "--served-model-name", "tiny", "-dp", "2", "-dpl", "1")  # fmt: skip


@pytest.fixture(scope="module")
def nodes(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, Stack]]:
    folder, rpc_port = tmp_path_factory.mktemp("nodes"), str(free_port())
    started = [
        start_stack(tiny_llama, folder / "first", *OPTIONS, "-dpp", rpc_port, "-asc", "2"),
        start_stack(tiny_llama, folder / "second", *OPTIONS, "-dpp", rpc_port, "-dpr", "1", "--headless"),
    ]
    first, second = started
    try:
        first.wait_healthy()
        second.wait_ready()
        wait_for(lambda: ready_ranks(first) == [0, 1])
        yield first, second
    finally:
        codes = [stop_stack(stack) for stack in (second, first)]
    assert codes == [0, 0], first.log.read_text() + second.log.read_text()


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)
    return found


def ready_ranks(stack: Stack) -> list[int]:
    workers = httpx.get(f"{stack.url}/fleet", timeout=SECONDS).json()["workers"]
    return sorted(worker["data_parallel_rank"] for worker in workers if worker["state"] == "ready")


def client(stack: Stack) -> openai.OpenAI:
    """Uses a new connection per request, so that requests are spread over the gateways."""
    limits = httpx.Limits(max_keepalive_connections=0)
    return openai.OpenAI(
        base_url=f"{stack.url}/v1", api_key="-", max_retries=4, http_client=httpx.Client(limits=limits)
    )


def complete(api: openai.OpenAI, number: int, max_tokens: int = 8) -> str:
    answer = api.completions.create(
        model="tiny",
        prompt=[number % 90 + 3] * 8,
        max_tokens=max_tokens,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    return answer.choices[0].text


def figure(stack: Stack, name: str) -> float:
    text = httpx.get(f"{stack.url}/metrics", timeout=SECONDS).text
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))


def processes(stack: Stack, command: str) -> list[int]:
    """Process ids of the stack's processes of one kind."""
    return [pid for pid, kind in stack.processes() if kind == command]


def test_a_headless_node_has_engines_alone(nodes: tuple[Stack, Stack]) -> None:
    first, second = nodes
    kinds = ("engine", "gateway", "router", "tokenizer")
    assert [len(processes(first, kind)) for kind in kinds] == [1, 2, 1, 1]
    assert [len(processes(second, kind)) for kind in kinds] == [1, 0, 0, 0]
    assert "data-parallel ranks 1 to 1 of 2 register with the router at 127.0.0.1:" in second.log.read_text()


def test_both_ranks_answer_at_one_port(nodes: tuple[Stack, Stack]) -> None:
    first, _ = nodes
    api = client(first)
    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda number: complete(api, number), range(32)))
    assert texts[:8] == [complete(api, number) for number in range(8)]
    wait_for(lambda: all(worker["generation_tokens"] for worker in
                         httpx.get(f"{first.url}/fleet", timeout=SECONDS).json()["workers"]))  # fmt: skip


def test_any_gateway_tells_what_all_counted_also_when_one_is_killed(nodes: tuple[Stack, Stack]) -> None:
    """Clients reconnect to the remaining gateway, and no metric is lost."""
    first, _ = nodes
    api, name = client(first), "vllm:request_success_total"

    def told() -> set[float]:
        return {figure(first, name) for _ in range(12)}

    def settled() -> set[float] | None:
        """The value that all gateways report twice, waiting longer in between than any takes to share its own."""
        before = told()
        time.sleep(2 * WRITE_SECONDS)
        return before if len(before) == 1 and told() == before else None

    (before,) = wait_for(settled)
    for number in range(20):
        complete(api, number, 2)
    wait_for(lambda: told() == {before + 20})
    killed = processes(first, "gateway")[0]
    os.kill(killed, signal.SIGKILL)
    for number in range(20):
        complete(api, number, 2)
    wait_for(lambda: told() == {before + 40})
    wait_for(lambda: len(processes(first, "gateway")) == 2 and killed not in processes(first, "gateway"))
    first.wait_healthy()
    wait_for(lambda: told() == {before + 40})


def test_an_engine_of_another_node_that_is_lost_takes_no_stream_with_it(nodes: tuple[Stack, Stack]) -> None:
    """Its streams continue elsewhere; the second node's supervisor restarts it, and it registers again."""
    first, second = nodes
    api = client(first)
    with ThreadPoolExecutor(8) as pool:
        expected = list(pool.map(lambda number: complete(api, number, 200), range(8)))
        answers = under_way(lambda number: pool.submit(complete, api, number, 200), 8, lambda: running_at(first, 1))
        for pid in processes(second, "engine"):
            os.kill(pid, signal.SIGKILL)
        assert [answer.result(SECONDS) for answer in answers] == expected
    wait_for(lambda: ready_ranks(first) == [0, 1])


def running_at(stack: Stack, rank: int) -> int:
    workers = httpx.get(f"{stack.url}/fleet", timeout=SECONDS).json()["workers"]
    return sum(worker["running_sequences"] for worker in workers if worker["data_parallel_rank"] == rank)
