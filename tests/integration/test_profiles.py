"""Commands from operators' guides to vLLM, typed verbatim: each starts, or says in one sentence why it does not."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from engine_svc.executor.uniproc import UniprocExecutor
from quire.cli import COMMANDS
from quire.errors import StartupError
from quire.options.parallel import ParallelOptions
from quire.serve.layout import StackOptions, choose_layout, with_derived
from quire.serve.ports import HeldPorts
from quire.serve.processes import process_specs
from tests.support.stack import start_stack, stop_stack

pytestmark = pytest.mark.slow

_FP8_FAST = "--kv-cache-dtype fp8 --load-format fastsafetensors"
_V1 = {"VLLM_USE_V1": "1"}
_FLASH = {**_V1, "VLLM_ATTENTION_BACKEND": "FLASH_ATTN"}
# Options and variables → the refusal's text; None if it starts with the built-in model.
PROFILES: dict[str, tuple[str, dict[str, str], str | None]] = {
    "throughput": (
        ("--max-num-seqs 2048 --max-num-batched-tokens 16384 --enable-chunked-prefill --enable-prefix-caching "
        f"--num-scheduler-steps 5 --gpu-memory-utilization 0.95 --quantization awq {_FP8_FAST}"),
        _FLASH, "--quantization awq is for checkpoints that are already quantized",
    ),
    "latency": (
        ("--max-num-seqs 128 --max-num-batched-tokens 4096 --enable-prefix-caching --gpu-memory-utilization 0.85 "
        f"--scheduler-delay-factor 0.0 {_FP8_FAST}"), _FLASH, None,
    ),
    "retrieval": (
        ("--enable-prefix-caching --enable-chunked-prefill --max-num-seqs 512 --max-model-len 16384 "
        "--gpu-memory-utilization 0.9 --kv-cache-dtype fp8 --enable-auto-tool-choice --tool-call-parser llama3_json"),
        _V1, "--max-model-len 16384 is more than the model's 2048 positions",
    ),
    "memory": (
        ("--quantization awq --max-model-len 8192 --max-num-seqs 64 --gpu-memory-utilization 0.75 --cpu-offload-gb 8 "
        f"{_FP8_FAST}"), {}, "--max-model-len 8192 is more than the model's 2048 positions",
    ),
    "reasoning": (
        ("--quantization fp8 --kv-cache-dtype fp8 --calculate-kv-scales --kv-sharing-fast-prefill --max-num-seqs 16 "
        "--enable-chunked-prefill --reasoning-parser step3p5 --enable-auto-tool-choice --tool-call-parser step3p5 "
        """--speculative_config '{"method": "step3p5_mtp", "num_speculative_tokens": 1}' """
        "--enable-expert-parallel --enable-eplb --trust-remote-code"),
        _FLASH, "--trust-remote-code is an option of vLLM that Quire does not implement",
    ),
    "tensor parallelism": (
        ("--tensor-parallel-size 4 --quantization awq --kv-cache-dtype fp8 --max-num-seqs 1024 "
        "--enable-chunked-prefill --enable-prefix-caching --gpu-memory-utilization 0.9"),
        _V1, "--quantization awq is for checkpoints that are already quantized",
    ),
    "tools": (
        ("--enable-auto-tool-choice --tool-call-parser llama3_json --enable-prefix-caching --max-num-seqs 256 "
        "--kv-cache-dtype fp8"), {}, None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PROFILES)
def test_it_is_taken_or_says_why_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack's options, the engine's command that is made of them, and loading the model in this process."""
    options, variables, refusal = PROFILES[name]
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    groups, output = parsed("serve", shlex.split(options), "quire.serve.stack", monkeypatch)
    if groups is None:
        assert refusal is not None and refusal in output
        return
    for variable in variables:
        assert f"warning: {variable} has no effect" in output
    with HeldPorts() as ports:
        stack = with_derived(StackOptions(**groups))
        engine, *_ = process_specs(stack, choose_layout(stack, ports))
    command = engine.command[engine.command.index("engine") + 1 :]
    groups, output = parsed("engine", command, "engine_svc.main", monkeypatch)
    assert groups is not None, output
    executor = UniprocExecutor()
    try:
        with contextlib.nullcontext() if refusal is None else pytest.raises(StartupError, match=re.escape(refusal)):
            executor.load(groups["model"], dataclasses.replace(groups["engine"], parallel=ParallelOptions()))
    finally:
        executor.close()


def parsed(
    command: str, arguments: Sequence[str], module: str, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any] | None, str]:
    """The options that the command's module is given, or None if they are refused, and the output."""
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(f"{module}.main", lambda **groups: told.append(groups))
    monkeypatch.setattr("quire.cli.end_with_supervisor", lambda: None)
    done = CliRunner().invoke(COMMANDS[command](), list(arguments))
    assert (done.exit_code == 0) == bool(told), done.output
    return (told[0] if told else None), done.output


def test_one_of_them_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, variables, _ = PROFILES["latency"]
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    stack = start_stack(None, tmp_path / "serve.log", *shlex.split(options))
    try:
        stack.wait_healthy()
        assert "Traceback" not in stack.log.read_text()
        for variable in variables:
            assert f"warning: {variable} has no effect" in stack.log.read_text()
    finally:
        stop_stack(stack)
