"""`quire bench serve` against a stack of ours."""

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
    if backend == "vllm":  # a chat has its template's tokens, too
        assert result["input_lens"] == [20] * 6
