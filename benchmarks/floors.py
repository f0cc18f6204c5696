"""How far the engine is above what this machine allows: `python -m benchmarks.floors --shape qwen3-0.6b`.

Measures memory reads and the rate of matrix products, works out what a step must at least take (weights and KV cache
read once, or its operations at the rate of products with so many rows, whichever is longer), and times the engine. What
a step takes beyond the model is the host's, as far as it is not hidden behind it.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from benchmarks.engine_alone import EngineAlone
from benchmarks.models import SHAPES, build_config
from engine_svc.models.config import ModelConfig, read_config
from engine_svc.models.registry import config_for
from engine_svc.native.library import choose_kernels
from engine_svc.ops.registry import create_ops
from engine_svc.quantization.registry import create_method
from quire.options.model_form import QUANTIZATIONS

_STEPS = 24


@dataclasses.dataclass(frozen=True)
class Machine:
    """What it can do."""

    bytes_per_second: float
    operations_per_second: dict[int, float]  # of products with so many rows


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a step must move and compute."""

    bytes: float
    operations: float
    rows: int

    def seconds(self, machine: Machine) -> float:
        """The least that it can take."""
        rate = machine.operations_per_second[max(rows for rows in machine.operations_per_second if rows <= self.rows)]
        return max(self.bytes / machine.bytes_per_second, self.operations / rate)


def best_seconds(call: Callable[[], object], repeats: int = 7) -> float:
    """Shortest of some runs, after one to warm up."""
    call()
    times = []
    for _ in range(repeats):
        _synchronize()
        start = time.perf_counter()
        call()
        _synchronize()
        times.append(time.perf_counter() - start)
    return min(times)


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure_machine(quantization: str | None, rows: list[int], device: torch.device) -> Machine:
    """Reads of memory that no cache holds; products with 64 MiB of weights."""
    data = torch.ones(2**28, device=device)
    bandwidth = data.numel() * 4 / best_seconds(data.sum)
    ops = create_ops(choose_kernels("auto", device), torch.bfloat16, device)
    outputs, size = 8192, 4096
    weight = torch.randn(outputs, size, device=device).to(torch.bfloat16)
    product = create_method(quantization, ops, torch.bfloat16).linear({"weight": weight}, None)
    rates = {}
    for count in rows:
        hidden = torch.randn(count, size, device=device).to(torch.bfloat16)
        rates[count] = 2 * outputs * size * count / best_seconds(lambda hidden=hidden: product(hidden))  # type: ignore[misc]
    return Machine(bandwidth, rates)


def weights(config: ModelConfig, tokens: int) -> tuple[float, float]:
    """(parameters of all layers that a step reads, parameters that each token is multiplied with).

    Of a mixture's experts, a step reads those that any token chose; the choice is taken to be even.
    """
    read = used = 0.0
    for moe in config.moe:
        attention = config.hidden_size * config.head_dim * (2 * config.num_heads + 2 * config.num_kv_heads)
        size = 3 * config.hidden_size * (moe.expert_size if moe else config.intermediate_size)
        chosen, count = (moe.experts_per_token, moe.num_experts) if moe else (1, 1)
        read += attention + size * count * (1 - (1 - chosen / count) ** tokens)
        used += attention + size * chosen
    return read, used


def step_cost(config: ModelConfig, tokens: int, sequences: int, context: int, bytes_per_weight: int) -> Cost:
    """A step of so many tokens, over the context that each sequence has."""
    read, used = weights(config, tokens)
    output = config.vocab_size * config.hidden_size
    kv_bytes = 2 * config.num_layers * config.num_kv_heads * config.head_dim * 2 * context * sequences
    attention = 4 * config.num_layers * config.num_heads * config.head_dim * context * tokens
    return Cost(
        bytes=read * bytes_per_weight + output * 2 + kv_bytes,
        operations=2 * (used * tokens + output * sequences) + attention,
        rows=tokens,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--context", type=int, default=128, help="tokens before the ones that are decoded")
    parser.add_argument("--prefill", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--quantization", choices=QUANTIZATIONS)
    arguments = parser.parse_args()
    folder = Path(".cache/configurations") / arguments.shape
    build_config(arguments.shape, folder)
    config = config_for(read_config(folder, {}))
    rows = sorted({*arguments.batches, arguments.prefill})
    machine = measure_machine(arguments.quantization, rows, torch.device(arguments.device))
    rates = ", ".join(f"{rate / 1e9:.0f} at {rows}" for rows, rate in machine.operations_per_second.items())
    print(f"Memory reads: {machine.bytes_per_second / 1e9:.1f} GB/s. Products, 10^9 operations/s by rows: {rates}.\n")
    print("| step | MB moved | 10^9 operations | floor ms | measured ms | ratio | beyond the model ms |")
    print("|---|---|---|---|---|---|---|")
    size = 1 if arguments.quantization else 2
    with EngineAlone(
        str(folder), load_format="dummy", quantization=arguments.quantization, device=arguments.device,
        max_model_len=max(arguments.prefill, arguments.context) + 16 * _STEPS,
    ) as engine:  # fmt: skip
        cost = step_cost(config, arguments.prefill, 1, arguments.prefill // 2, size)
        measured = statistics.median(engine.prefill_seconds(arguments.prefill) for _ in range(5))
        report(f"prefill of {arguments.prefill} tokens", cost, machine, measured, "")
        for batch in arguments.batches:
            cost = step_cost(config, batch, batch, arguments.context + _STEPS // 2, size)
            measured = engine.decode_seconds(batch, arguments.context, _STEPS)
            beyond = f"{measured * 1e3 - engine.execute_milliseconds:.2f}"
            report(f"decode of {batch}", cost, machine, measured, beyond)


def report(name: str, cost: Cost, machine: Machine, measured: float, beyond: str) -> None:
    """One row of the table."""
    floor = cost.seconds(machine)
    print(
        f"| {name} | {cost.bytes / 1e6:.0f} | {cost.operations / 1e9:.1f} | {floor * 1e3:.2f} | {measured * 1e3:.2f} | "
        f"{measured / floor:.2f} | {beyond} |", flush=True,
    )  # fmt: skip


if __name__ == "__main__":
    main()
