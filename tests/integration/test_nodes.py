"""One engine over two nodes, which are two stacks of this machine: one with everything and a headless one."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.support.engine_process import free_port
from tests.support.stack import Stack, start_stack, stop_stack
from tests.support.tiny_models import reference_tokens
from tests.support.waiting import eventually_now, under_way

pytestmark = pytest.mark.slow

SECONDS = 90.0
COUNT = 200
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8]]
OPTIONS = ("--dtype", "float32", "--max-model-len", "512", "--kv-cache-memory-bytes", "32M", "--cpu-threads", "1",
           "--served-model-name", "tiny", "-tp", "2", "--nnodes", "2", "--master-addr", "127.0.0.1")  # fmt: skip


@pytest.fixture(scope="module")
def nodes(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, Stack]]:
    """The stacks; what each logs, beyond warnings, is in the file `log` beside its output."""
    folder, port = tmp_path_factory.mktemp("nodes"), str(free_port())

    def start(name: str, *more: str) -> Stack:
        (folder / name).mkdir()
        log = ("--log-file", str(folder / name / "log"))
        return start_stack(tiny_llama, folder / name / "output", *OPTIONS, "--master-port", port, *log, *more)

    first, second = start("first"), start("second", "--node-rank", "1", "--headless")
    try:
        first.wait_healthy()
        yield first, second
    finally:
        codes = [stop_stack(stack) for stack in (first, second)]
    assert codes == [0, 0], first.log.read_text() + second.log.read_text()


def complete(stack: Stack, prompt: list[int]) -> list[int]:
    """Token ids of a greedy completion."""
    request = {
        "model": "tiny", "prompt": prompt, "max_tokens": COUNT, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True,
    }  # fmt: skip
    answer = httpx.post(f"{stack.url}/v1/completions", json=request, timeout=SECONDS).raise_for_status().json()
    return list(answer["choices"][0]["token_ids"])


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def running(stack: Stack) -> int:
    (worker,) = httpx.get(f"{stack.url}/fleet", timeout=SECONDS).json()["workers"]
    return int(worker["running_sequences"])


def test_two_nodes_answer_as_one_rank_and_a_lost_one_takes_no_stream_with_it(
    nodes: tuple[Stack, Stack], tiny_llama: Path
) -> None:
    first, second = nodes
    expected = reference_tokens(tiny_llama, PROMPTS, COUNT)
    assert [len(second.processes()), list(second.children())] == [1, ["engine"]]
    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        assert list(pool.map(lambda prompt: complete(first, prompt), PROMPTS)) == expected
        answers = under_way(lambda number: pool.submit(complete, first, PROMPTS[number]), 2, lambda: running(first))
        (rank,) = children(second.children()["engine"])
        os.kill(rank, signal.SIGKILL)
        assert [answer.result(SECONDS) for answer in answers] == expected
    assert "rank 1 (at 127.0.0.1, node 1) has gone" in first.log.read_text()
    assert "rank 1: loaded weights" in (second.log.parent / "log").read_text()
    assert re.search(rf"rank 1 \(process {rank}\) was killed by SIGKILL", second.log.read_text())


def test_a_node_without_node_0_has_no_ranks(nodes: tuple[Stack, Stack]) -> None:
    first, second = nodes
    (node,) = [pid for pid, _ in second.processes()]
    assert children(node)
    assert stop_stack(first) == 0
    eventually_now(lambda: not children(node), "no rank is left", SECONDS)
    assert "node 0 has closed the connection" in second.log.read_text()
