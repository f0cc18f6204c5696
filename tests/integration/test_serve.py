"""`quire serve` as a user meets it: the summary, the errors, a dying service, Ctrl-C, the clients."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

import quire as quire_package
from engine_svc.executor.base import create_executor
from engine_svc.kv_cache.sizing import size_kv_cache
from quire.errors import StartupError
from quire.options.model import ModelOptions
from tests.support.certificates import make_authority, make_certificate
from tests.support.engine_options import engine_options
from tests.support.engine_process import free_port
from tests.support.stack import ROOT, STOP_SECONDS, Stack, quire, start_stack, stop_stack
from tests.support.traces import PARENT_ID, TRACEPARENT, Collector

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


@pytest.fixture(scope="module")
def more_arguments(collector: Collector) -> tuple[str, ...]:
    return ("--otlp-traces-endpoint", collector.endpoint, "--collect-detailed-traces", "model,worker")


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(quire(*arguments), cwd=ROOT, capture_output=True, text=True, timeout=90)


def chat(stack: Stack, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run("chat", "--url", f"{stack.url}/v1", "--max-tokens", "8", "--quick", "Hello", *arguments)


def test_summary(stack: Stack) -> None:
    """Before the summary there is one line for each event; the services' own lines go to a file."""
    text = stack.log.read_text()
    before = text[: text.index("Quire 0.1.0 is ready")].splitlines()[1:]
    assert {line.partition(":")[0] for line in before} == {"engine", "router", "tokenizer", "gateway"}, before
    stages = {line.partition(": ")[2].split()[0] for line in before}
    assert stages <= {"compiling", "loading", "warming", "ready", "waiting:"}  # the last where it takes ten seconds
    log = next(line for line in text.splitlines() if line.startswith("  log ")).split()[1]
    assert "I router: listening on port" in Path(log).read_text()
    wait_for(lambda: " is ready\n" in Path(log).read_text())
    loading, _, _ = Path(log).read_text().partition(" is ready\n")
    assert loading.count("is loading the model") <= 1  # it may be done before the router looks
    assert not re.search("session with Engine worker .* lost|unreachable", loading), loading
    for part in ("tiny (LlamaForCausalLM, float32)", "KV cache", "1,024 tokens", f"{stack.url}/v1", "curl "):
        assert part in text


def test_the_printed_command_shows_the_fleet(stack: Stack) -> None:
    line = next(line for line in stack.log.read_text().splitlines() if "quire workers" in line)
    answer = run(*line.partition("quire ")[2].split())
    assert "1 of 1 ready" in answer.stdout, answer.stderr


def test_the_printed_curl_line_works(stack: Stack) -> None:
    line = next(line for line in stack.log.read_text().splitlines() if line.strip().startswith("try"))
    answer = subprocess.run(line.strip()[3:].strip(), shell=True, capture_output=True, text=True, timeout=60)
    assert json.loads(answer.stdout)["choices"][0]["finish_reason"], answer


def test_chat_and_complete(stack: Stack) -> None:
    answer = chat(stack)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip()
    completed = run("complete", "--url", f"{stack.url}/v1", "--quick", "abc", "--max-tokens", "4")
    assert completed.returncode == 0, completed.stderr


def test_a_trace_over_all_services(stack: Stack, collector: Collector) -> None:
    """Spans of all services reach the collector as one trace (contents: tests/gateway/requests/test_traces.py)."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    answer = httpx.post(f"{stack.url}/v1/chat/completions", json=body, headers={"traceparent": TRACEPARENT}, timeout=60)
    assert answer.status_code == 200, answer.text
    chat, render, tokenizer = "POST /v1/chat/completions", "RenderChat", "quire.v1.TokenizerService"
    names = [chat, f"{tokenizer}/{render}", "llm_request", "route", "engine", "queue", "prefill", "decode"]
    spans = collector.wait(names)
    parents = {chat: "", f"{tokenizer}/{render}": chat, "llm_request": chat, "route": "llm_request", "engine": "route"}
    for name, parent in parents.items():
        assert spans[name].parent_id == (spans[parent].span_id if parent else PARENT_ID), name
    services = {spans[name].service for name in names}
    assert services == {"quire-gateway", "quire-tokenizer", "quire-router", "quire-engine"}
    assert spans["engine"].attributes["gen_ai.latency.time_in_model_forward"] > 0
    assert spans["route"].attributes["quire.worker"].startswith("127.0.0.1:")


@pytest.mark.parametrize("backend", ["vllm", "openai-chat"])
def test_it_is_measured(stack: Stack, tmp_path: Path, backend: str) -> None:
    answer = run(
        "bench", "serve", "--base-url", f"{stack.url}/v1", "--backend", backend, "--num-prompts", "6",
        "--random-input-len", "20", "--random-output-len", "5", "--ignore-eos", "--max-concurrency", "3",
        "--save-detailed", "--result-filename", str(tmp_path / "result.json"), "--plot",
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"], result["output_lens"]) == (6, 0, [5] * 6)
    assert result["max_concurrent_requests"] <= 6 and (tmp_path / "result.svg").exists()
    if backend == "vllm":  # a chat also has the template's tokens
        assert result["input_lens"] == [20] * 6


def test_no_server() -> None:
    answer = run("chat", "--url", f"http://127.0.0.1:{free_port()}/v1", "--quick", "x")
    assert answer.returncode == 1
    assert "quire serve" in answer.stderr


def test_a_killed_service_comes_back(stack: Stack) -> None:
    """The stack serves again after the death of any of its services; SIGHUP ends all of them."""
    for service in ("tokenizer", "router", "engine", "gateway"):
        before = stack.children()[service]
        os.kill(before, signal.SIGKILL)
        wait_for(lambda before=before, service=service: stack.children().get(service) not in (None, before))
        stack.wait_healthy()
        wait_for(lambda: answers(stack))
    children = [int(pid) for pid in stack.children().values()]
    code = stop_stack(stack, signal.SIGHUP)  # as when the terminal is closed
    assert code == 0, stack.log.read_text()
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


def answers(stack: Stack) -> bool:
    """Whether a completion is answered."""
    with contextlib.suppress(httpx.TransportError):
        body = {"model": "tiny", "prompt": "Hello", "max_tokens": 4}
        return httpx.post(f"{stack.url}/v1/completions", json=body, timeout=60).status_code == 200
    return False


def test_behind_a_proxy_with_keys_and_client_certificates(tiny_llama: Path, tmp_path: Path) -> None:
    """Readiness is not checked over HTTP, because the supervisor has neither the key nor a client certificate."""
    if not shutil.which("openssl"):
        pytest.skip("certificates are made with the openssl command")
    make_authority(tmp_path)
    make_certificate(tmp_path, "gateway")
    running = start_stack(
        tiny_llama, tmp_path / "log", "--root-path", "/llm", "--api-key", "key", "--ssl-cert-reqs", "2",
        "--ssl-certfile", str(tmp_path / "gateway.pem"), "--ssl-keyfile", str(tmp_path / "gateway.key"),
        "--ssl-ca-certs", str(tmp_path / "ca.pem"), "--kv-cache-memory-bytes", "16M",
    )  # fmt: skip
    try:
        running.wait_ready()
        children = list(running.children().values())
        running.process.kill()  # no service may outlive a killed supervisor
        running.process.wait(STOP_SECONDS)
        wait_for(lambda: not [pid for pid in children if Path(f"/proc/{pid}").exists()])
    finally:
        stop_stack(running)


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.2)
    raise AssertionError("the condition never came true")


def test_an_engine_that_dies_while_it_loads_ends_the_stack(tiny_llama: Path, tmp_path: Path) -> None:
    """The stack ends at once, and says how the engine died."""
    running = start_stack(tiny_llama, tmp_path / "log")
    try:
        wait_for(lambda: "engine" in running.children())
        os.kill(running.children()["engine"], signal.SIGKILL)
        assert running.process.wait(STOP_SECONDS) == 1
    finally:
        stop_stack(running)
    assert "error: engine was killed by SIGKILL before it was ready. See " in running.log.read_text()


def test_no_such_folder() -> None:
    answer = run("serve", "/nowhere/model", "--port", str(free_port()))
    assert answer.returncode == 1
    assert answer.stderr == "error: No model at /nowhere/model: there is no such folder. Check the path.\n"


def test_port_in_use(tiny_llama: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        answer = run("serve", str(tiny_llama), "--port", str(taken.getsockname()[1]))
    assert answer.returncode == 1
    assert "in use" in answer.stderr
    assert "--port" in answer.stderr


def test_what_only_the_engine_can_judge_is_the_last_word(tiny_llama: Path, tmp_path: Path) -> None:
    """Other services may have reported that they are ready, but their shutdown prints nothing after the error."""
    config = json.loads((tiny_llama / "config.json").read_text()) | {"architectures": ["StrangeForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "model.safetensors"):
        (tmp_path / name).symlink_to(tiny_llama / name)
    answer = run("serve", str(tmp_path), "--port", str(free_port()))
    assert answer.returncode == 1
    started, *ready, error = answer.stderr.splitlines()
    assert started == f"Quire {quire_package.__version__} is starting {tmp_path}"
    # Services that wait for the engine say so after ten seconds.
    assert all(re.fullmatch(r"\w+: (ready after [0-9.]+ s|waiting: .*)", line) for line in ready), ready
    assert error.startswith("error: The model's architecture (StrangeForCausalLM) is not supported")
    assert "docs/models.md lists what is supported" in error


def test_not_enough_memory_names_the_length_that_fits(tiny_llama: Path) -> None:
    # 4 layers x 2 x 4 heads x 32 x 4 bytes = 4 KiB a token: 1 MiB holds 256 tokens.
    options = engine_options(
        dtype="float32", kv_cache_memory_bytes=2**20, max_model_len=1024, use_tqdm_on_load=False, cpu_threads=1
    )
    with contextlib.closing(create_executor(options.parallel)) as executor:
        spec = executor.load(ModelOptions(model=str(tiny_llama)), options)
        with pytest.raises(StartupError, match="--max-model-len that fits is 256"):
            size_kv_cache(spec, options)


def test_an_option_that_is_refused() -> None:
    """What is refused and why: tests/quire/options."""
    answer = run("serve", "model", "--max-num-seqs=0")
    assert answer.returncode == 2
    assert "at least 1" in answer.stderr
