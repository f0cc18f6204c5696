"""`quire bench` with an engine; with a stack, see test_serve.py."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.stack import ROOT, quire


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
