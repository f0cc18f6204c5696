"""Commands from operators' guides to vLLM, typed verbatim: each starts, or says in one sentence why it does not."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

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
def test_it_starts_or_says_why_not(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options, variables, refusal = PROFILES[name]
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    stack = start_stack(None, tmp_path / "serve.log", *shlex.split(options))
    try:
        if refusal is None:
            stack.wait_healthy()
        else:
            assert stack.process.wait(60) != 0
            assert refusal in stack.log.read_text()
        assert "Traceback" not in stack.log.read_text()
        for variable in variables:
            assert refusal is not None or f"warning: {variable} has no effect" in stack.log.read_text()
    finally:
        stop_stack(stack)
