"""How close the engine is to this machine's limits: `python -m benchmarks.floors --shape qwen3-0.6b`.

Measures the machine (benchmarks/rates.py), computes the minimum time of a step (reading weights and KV cache once, or
its operations at the rate of products with as many rows, whichever takes longer), and times the engine in steady state.
The largest batch runs once before anything is measured, and all others reuse its blocks, so that no page of the KV
cache is touched for the first time, which takes milliseconds on a virtual machine. The time of a step beyond the
model's is host time that is not hidden behind the model. Each form of the model is measured in a separate process.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import multiprocessing
import os
import statistics
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import torch

from benchmarks.engine_alone import EngineAlone
from benchmarks.machine import chosen_level, heading
from benchmarks.models import SHAPES, WITHOUT_FLOORS, build_config
from benchmarks.rates import TORCH_LIMITS, Form, Machine, measure_machine
from engine_svc.config_formats.registry import read_model_config
from engine_svc.models.config import ModelConfig
from engine_svc.models.registry import config_for
from quire.options.kernels import CPU_LEVELS
from quire.options.model_form import QUANTIZATIONS, ModelFormOptions

_STEPS = 24
_STORED = {"int4": 0.5}  # bytes of a weight by quantization, without scales; 1 in all others


@dataclasses.dataclass(frozen=True)
class Cost:
    """What a step must move and compute."""

    bytes: float
    operations: float
    rows: int

    def seconds(self, machine: Machine) -> float:
        """The minimum time of the step."""
        return max(self.bytes / machine.bytes_per_second, self.operations / machine.rate(self.rows))


def weights(config: ModelConfig, tokens: int) -> tuple[float, float]:
    """(parameters of all layers that a step reads, parameters that each token is multiplied with).

    Of a mixture's experts, a step reads those that any token has chosen, assuming uniform choices.
    """
    layers = [layer_weights(config, index, tokens) for index in range(config.num_layers)]
    return sum(read for read, _ in layers), sum(used for _, used in layers)


def layer_weights(config: ModelConfig, index: int, tokens: int) -> tuple[float, float]:
    """The same for a single layer."""
    moe, for_all = config.moe[index], attention_weights(config)
    size = 3 * config.hidden_size * (moe.expert_size if moe else config.intermediate_size)
    chosen, count = (moe.experts_per_token, moe.num_experts) if moe else (1, 1)
    if moe:
        for_all += config.hidden_size * (moe.num_experts + 3 * (moe.shared_size or 0))
    return for_all + size * count * (1 - (1 - chosen / count) ** tokens), for_all + size * chosen


def attention_weights(config: ModelConfig) -> int:
    """Parameters of a layer's attention."""
    hidden, heads = config.hidden_size, config.num_heads
    latent = config.latent
    if latent is None:
        return hidden * config.head_dim * (2 * heads + 2 * config.num_kv_heads)
    query = heads * (latent.plain_dim + latent.rotated_dim)
    return (
        (hidden * query if latent.query_rank is None else (hidden + query) * latent.query_rank)
        + hidden * (latent.rank + latent.rotated_dim)
        + latent.rank * heads * (latent.plain_dim + latent.value_dim)
        + heads * latent.value_dim * hidden
    )


def positions_seen(config: ModelConfig, context: int) -> list[int]:
    """Number of positions of a context that one token attends to, for each layer."""
    return [min(context, window or context) for window in config.sliding_windows]


def step_cost(config: ModelConfig, tokens: int, sequences: int, context: int, form: Form) -> Cost:
    """Cost of a step with `tokens` tokens in all, where each sequence has the given context.

    In the last layer, only keys and values are computed for tokens that nothing is sampled from.
    """
    size = torch.finfo(form.torch_dtype).bits // 8
    stored = _STORED.get(form.quantization, 1.0) if form.quantization else size
    read, used = weights(config, tokens)
    output = config.vocab_size * config.hidden_size
    latent, seen = config.latent, positions_seen(config, context)
    cached = latent.rank + latent.rotated_dim if latent else 2 * config.num_kv_heads * config.head_dim
    dims = latent.plain_dim + latent.rotated_dim + latent.value_dim if latent else 2 * config.head_dim
    kv_bytes = cached * size * sum(seen) * sequences
    attention = config.num_heads * dims
    _, last = layer_weights(config, config.num_layers - 1, tokens)
    skipped = last - config.hidden_size * cached + attention * seen[-1]
    return Cost(
        bytes=read * stored + output * size + kv_bytes,
        operations=2 * ((used + attention * sum(seen)) * tokens + output * sequences - skipped * (tokens - sequences)),
        rows=tokens,
    )


def table(arguments: argparse.Namespace, folder: Path, form: Form) -> None:
    """Prints the machine's rates for a form of the model, and the table of its steps."""
    config = config_for(read_model_config(folder, ModelFormOptions()))
    rows = sorted({*arguments.batches, arguments.prefill})
    machine = measure_machine(form, rows, torch.device(arguments.device))
    rates = ", ".join(f"{rate / 1e9:.0f} at {rows}" for rows, rate in machine.operations_per_second.items())
    print(f"`{arguments.shape}`, kernels {chosen_level(form.kernels)}, {form.quantization or form.dtype}.", end=" ")
    print(f"Memory reads: {machine.bytes_per_second / 1e9:.1f} GB/s. Products, 10^9 operations/s by rows: {rates}.\n")
    print("| step | MB moved | 10^9 operations | floor ms | measured ms | ratio | beyond the model ms |")
    print("|---|---|---|---|---|---|---|", flush=True)
    with EngineAlone(
        str(folder), load_format="dummy", quantization=form.quantization, dtype=form.dtype, device=arguments.device,
        cpu_kernels=form.kernels, max_model_len=max(arguments.prefill, arguments.context) + 16 * _STEPS,
        enable_prefix_caching=False,  # else blocks that have never been used are allocated first
    ) as engine:  # fmt: skip
        engine.decode_seconds(max(arguments.batches), arguments.context, _STEPS)
        for batch in arguments.batches:
            cost = step_cost(config, batch, batch, arguments.context + _STEPS // 2, form)
            measured = engine.decode_seconds(batch, arguments.context, _STEPS)
            beyond = f"{measured * 1e3 - engine.execute_milliseconds:.2f}"
            report(f"decode of {batch}", cost, machine, measured, beyond)
        cost = step_cost(config, arguments.prefill, 1, arguments.prefill // 2, form)
        measured = statistics.median(engine.prefill_seconds(arguments.prefill) for _ in range(9))
        report(f"prefill of {arguments.prefill} tokens", cost, machine, measured, "")
    print(flush=True)


def report(name: str, cost: Cost, machine: Machine, measured: float, beyond: str) -> None:
    """One row of the table."""
    floor = cost.seconds(machine)
    print(
        f"| {name} | {cost.bytes / 1e6:.0f} | {cost.operations / 1e9:.1f} | {floor * 1e3:.2f} | {measured * 1e3:.2f} | "
        f"{measured / floor:.2f} | {beyond} |", flush=True,
    )  # fmt: skip


@contextmanager
def limited(level: str) -> Iterator[None]:
    """Context in which started processes keep torch to the instructions of a level."""
    before = dict(os.environ)
    os.environ.update(TORCH_LIMITS.get(level, {}))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shapes = [name for name in SHAPES if name not in WITHOUT_FLOORS]
    parser.add_argument("--shape", choices=shapes, default="qwen3-0.6b")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32, 128])
    parser.add_argument("--context", type=int, default=128, help="tokens before the ones that are decoded")
    parser.add_argument("--prefill", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--cpu-kernels", nargs="+", choices=["auto", *CPU_LEVELS, "torch"], default=["auto"])
    parser.add_argument("--dtype", nargs="+", choices=["bfloat16", "float16", "float32"], default=["bfloat16"])
    parser.add_argument("--quantization", nargs="+", choices=["none", *QUANTIZATIONS], default=["none"])
    arguments = parser.parse_args()
    folder = Path(".cache/configurations") / arguments.shape
    build_config(arguments.shape, folder)
    print(heading())
    for kernels, dtype, name in itertools.product(arguments.cpu_kernels, arguments.dtype, arguments.quantization):
        form = Form(kernels, dtype, None if name == "none" else name)
        with limited(kernels), ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
            process.submit(table, arguments, folder, form).result()


if __name__ == "__main__":
    main()
