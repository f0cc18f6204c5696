"""`quire bench` against one of our stacks and one of our engines."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.stack import ROOT, Stack, quire


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["vllm", "openai-chat"])
def test_a_stack_is_measured(stack: Stack, tmp_path: Path, backend: str) -> None:
    command = quire(
        "bench", "serve", "--base-url", f"{stack.url}/v1", "--backend", backend, "--num-prompts", "6",
        "--random-input-len", "20", "--random-output-len", "5", "--ignore-eos", "--max-concurrency", "3",
        "--save-detailed", "--result-filename", str(tmp_path / "result.json"), "--plot",
    )  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["completed"], result["failed"], result["output_lens"]) == (6, 0, [5] * 6)
    assert result["max_concurrent_requests"] <= 6 and (tmp_path / "result.svg").exists()
    if backend == "vllm":  # a chat also has the template's tokens
        assert result["input_lens"] == [20] * 6


@pytest.mark.slow
def test_an_engine_is_measured(tiny_llama: Path, tmp_path: Path) -> None:
    common = [str(tiny_llama), "--max-model-len", "256", "--kv-cache-memory-bytes", "16M", "--input-len", "16",
              "--output-len", "4"]  # fmt: skip
    latency = ["--batch-size", "2", "--num-iters-warmup", "1", "--num-iters", "3"]
    throughput = ["--num-prompts", "5", "--num-warmups", "1", "--n", "2"]
    results = {}
    for name, arguments in (("latency", latency), ("throughput", throughput)):
        command = quire("bench", name, *common, *arguments, "--output-json", str(tmp_path / name))
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90)
        assert done.returncode == 0, done.stderr
        results[name] = json.loads((tmp_path / name).read_text())
    assert len(results["latency"]["latencies"]) == 3
    assert (results["throughput"]["num_requests"], results["throughput"]["total_num_tokens"]) == (5, 5 * (16 + 2 * 4))
