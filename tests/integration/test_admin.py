"""Operators' commands on a real stack: `quire serve` with two engines, put to sleep and woken, profiled, drained."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file, save_file

from quire.sampling import SamplingParameters
from tests.support.engine_process import free_port
from tests.support.run_engine import run, running_engine
from tests.support.stack import Stack, start_stack, stop_stack

pytestmark = pytest.mark.slow
TOKENS: dict[str, Any] = {
    "model": "tiny", "prompt": [5, 6, 7, 8, 9], "max_tokens": 24, "temperature": 0, "ignore_eos": True,
    "return_token_ids": True,
}  # fmt: skip
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


def choice_of(stack: Stack) -> dict[str, Any]:
    body = TOKENS | {"return_weight_versions": True}
    answer = httpx.post(f"{stack.url}/v1/completions", json=body, timeout=60).raise_for_status().json()
    return dict(answer["choices"][0])


def tokens_of(stack: Stack) -> list[int]:
    return list(choice_of(stack)["token_ids"])


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


def test_new_weights_from_a_folder(
    operated: tuple[Stack, httpx.Client, Path], tiny_llama: Path, tmp_path: Path
) -> None:
    """Both engines then answer as a new engine does, and again as before once they have the old weights back."""
    stack, admin, _ = operated
    before = tokens_of(stack)
    other = shutil.copytree(tiny_llama, tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    save_file({name: values.roll(1, 0) for name, values in weights.items()}, other / "model.safetensors")
    with running_engine(other) as engine:
        sampling = SamplingParameters(temperature=0, max_tokens=TOKENS["max_tokens"], ignore_eos=True)
        ((output,),) = run(engine, [TOKENS["prompt"]], sampling)
    assert output.token_ids != before
    wanted = {other: output.token_ids, tiny_llama: before}
    for version, folder in enumerate(wanted):
        body = {"model_path": str(folder), "weight_version": f"step {version}"}
        told = admin.post("/update_weights_from_disk", json=body).raise_for_status().json()
        assert [worker["weight_version"] for worker in told["workers"]] == [f"step {version}"] * 2
        for worker in told["workers"]:
            ask(admin, f"/drain?worker={worker['worker']}")
            choice = choice_of(stack)
            assert choice["token_ids"] == wanted[folder]
            spans = [{"version": f"step {version}", "start": 0, "end": len(wanted[folder])}]
            assert choice["weight_versions"] == spans
            ask(admin, f"/undrain?worker={worker['worker']}")
    broken = admin.post("/update_weights_from_disk", json={"model_path": str(tmp_path)})
    assert (broken.status_code, broken.json()["error"]["param"]) == (400, "model_path")
    assert httpx.get(f"{stack.url}/health").status_code == 200


def test_the_clients_port_has_none_of_it(operated: tuple[Stack, httpx.Client, Path]) -> None:
    stack, admin, _ = operated
    assert httpx.post(f"{stack.url}/sleep").status_code == 404
    assert httpx.post(admin.base_url.join("/sleep")).status_code == 401
