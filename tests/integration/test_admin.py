"""Operators' commands on a real stack: `quire serve` with two engines, put to sleep and woken, profiled, drained."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.engine_process import free_port
from tests.support.stack import Stack, start_stack, stop_stack

pytestmark = pytest.mark.slow
BODY = {"model": "tiny", "prompt": "Once upon a time", "max_tokens": 40, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def operated(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stack, httpx.Client, Path]]:
    """A stack, a client of its admin port, and the folder of its profiles."""
    folder, port = tmp_path_factory.mktemp("operated"), free_port()
    running = start_stack(
        tiny_llama, folder / "log", "--dtype", "float32", "--served-model-name", "tiny", "--max-model-len", "1024",
        "--kv-cache-memory-bytes", "64M", "--engines", "2", "--enable-sleep-mode", "--admin-port", str(port),
        "--admin-api-key", "operator", "--profiler-config.torch_profiler_dir", str(folder / "traces"),
    )  # fmt: skip
    try:
        running.wait_healthy()
        headers = {"authorization": "Bearer operator"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=60) as admin:
            yield running, admin, folder / "traces"
    finally:
        code = stop_stack(running)
    assert code == 0, running.log.read_text()


def complete(stack: Stack) -> str:
    answer = httpx.post(f"{stack.url}/v1/completions", json=BODY, timeout=60).raise_for_status().json()
    return str(answer["choices"][0]["text"])


def ask(admin: httpx.Client, path: str) -> dict[str, Any]:
    return dict(admin.post(path).raise_for_status().json())


@pytest.mark.parametrize("level", [1, 2])
def test_the_same_answer_after_a_sleep(operated: tuple[Stack, httpx.Client, Path], level: int) -> None:
    stack, admin, _ = operated
    before = complete(stack)
    assert ask(admin, f"/sleep?level={level}")["status"] == "sleeping"
    assert httpx.get(f"{stack.url}/health").status_code == 503
    assert httpx.post(f"{stack.url}/v1/completions", json=BODY).headers["retry-after"] in ("1", "2")
    assert len(ask(admin, "/wake_up")["workers"]) == 2
    for worker in admin.get("/workers").json()["workers"]:
        ask(admin, f"/drain?worker={worker['address']}")
        assert complete(stack) == before  # from each engine, as the other one is drained
        ask(admin, f"/undrain?worker={worker['address']}")


def test_profiles_can_be_read(operated: tuple[Stack, httpx.Client, Path]) -> None:
    stack, admin, folder = operated
    ask(admin, "/start_profile")
    complete(stack)
    files = [file for worker in ask(admin, "/stop_profile")["workers"] for file in worker["files"]]
    assert sorted(files) == sorted(map(str, folder.iterdir()))
    events = [event for file in files for event in json.loads(gzip.decompress(Path(file).read_bytes()))["traceEvents"]]
    assert "compute" in {event["name"] for event in events}


def test_the_clients_port_has_none_of_it(operated: tuple[Stack, httpx.Client, Path]) -> None:
    stack, admin, _ = operated
    assert httpx.post(f"{stack.url}/sleep").status_code == 404
    assert httpx.post(admin.base_url.join("/sleep")).status_code == 401
