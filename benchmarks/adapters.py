"""Cost of adapters: decode throughput with none, one, or several adapters in a batch.

`python -m benchmarks.adapters` takes a minute. All cases take turns in one process, on one model with random weights.
Other load on the machine slows them all alike, so the ratios are what counts. `--one-thread` measures the CPU time of a
single thread, which other processes disturb least.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from benchmarks.machine import heading
from benchmarks.models import SHAPES, build_config
from engine_svc.executor.base import Executor, create_executor
from engine_svc.native.levels import available_levels
from engine_svc.native.library import kernels
from engine_svc.plan import (
    AdapterChanges,
    AdapterPlacement,
    CacheSize,
    NewSequence,
    SamplingPlan,
    ScheduledSequence,
    StepPlan,
    StepResult,
)
from quire.options.base import build
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions
from quire.sampling import SamplingParameters

_PROMPT = 64  # tokens
_STEPS = 4  # steps of a case per round; the first is not counted
_PREFIX = "base_model.model."


def write_adapter(folder: Path, modules: Mapping[str, tuple[int, int]], rank: int) -> None:
    """Writes an adapter with random bfloat16 matrices for modules."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": "all-linear"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    tensors = {}
    for module, (outputs, inputs) in modules.items():
        tensors[f"{_PREFIX}{module}.lora_A.weight"] = torch.randn(rank, inputs, dtype=torch.bfloat16) / inputs**0.5
        tensors[f"{_PREFIX}{module}.lora_B.weight"] = torch.randn(outputs, rank, dtype=torch.bfloat16) / 100
    save_file(tensors, folder / "adapter_model.safetensors")


class Decoding:
    """A model with adapter slots, and sequences that decode with it."""

    def __init__(self, folder: Path, sequences: int, adapters: int, rank: int, one_thread: bool) -> None:
        given = {
            "load_format": "dummy", "enable_lora": True, "max_loras": adapters, "max_lora_rank": rank,
            "max_num_seqs": sequences, "use_tqdm_on_load": False, "max_model_len": 1024,
        }  # fmt: skip
        options = build(EngineOptions, given)
        self._executor: Executor = create_executor(options.parallel)
        spec = self._executor.load(ModelOptions(model=str(folder)), options)
        self._pages = -(-(_PROMPT + _STEPS + 1) // spec.block_size)
        self._executor.allocate(CacheSize(sequences * self._pages))
        self._sequences, self._step = sequences, 0
        self._token_ids = torch.randint(spec.vocab_size, (sequences, _PROMPT)).tolist()
        # Modules have several names; use those of Llama and Qwen.
        own = {name: shape for name, shape in spec.adapter_modules.items() if _is_usual(name)}
        write_adapter(folder / "adapter", own, rank)
        self._place(folder / "adapter", adapters)
        self._clock = time.thread_time if one_thread else time.perf_counter
        if one_thread:
            kernels(available_levels()[-1]).set_threads(1)

    def _place(self, folder: Path, adapters: int) -> None:
        """Places the same matrices in all slots: reading them costs as much as different ones."""
        keys = range(1, adapters + 1)
        read = self._run([], [], AdapterChanges(read={key: str(folder) for key in keys})).read_adapters
        while len(read) < adapters:
            time.sleep(0.1)
            read = {**read, **self._run([], [], AdapterChanges()).read_adapters}
        if any(read.values()):
            raise RuntimeError(str(read))
        self._run([], [], AdapterChanges(placed=[AdapterPlacement(key, key) for key in keys]))

    def _run(self, new: list[NewSequence], scheduled: list[ScheduledSequence], changes: AdapterChanges) -> StepResult:
        self._step += 1
        self._executor.submit(StepPlan(self._step, new, scheduled, adapters=changes))
        return self._executor.collect()

    def seconds(self, adapters: int) -> list[float]:
        """Durations of decode steps in which this many different adapters run."""
        new = []
        for slot, token_ids in enumerate(self._token_ids):
            blocks = [[*range(slot * self._pages, (slot + 1) * self._pages)]]
            sampling = SamplingPlan(SamplingParameters(temperature=0.0))
            adapter = slot % adapters + 1 if adapters else 0
            new.append(NewSequence(slot, token_ids, _PROMPT, 0, blocks, sampling, adapter_slot=adapter))
        found = []
        for number in range(_STEPS):
            scheduled = [ScheduledSequence(slot, _PROMPT - 1 + number, 1, 1, []) for slot in range(self._sequences)]
            start = self._clock()
            self._run(new if number == 0 else [], scheduled, AdapterChanges())
            found.append(self._clock() - start)
        return found[1:]

    def close(self) -> None:
        """Frees the model."""
        self._executor.close()


def _is_usual(module: str) -> bool:
    layer, _, name = module.rpartition(".")
    attends = layer.endswith("self_attn") and name in ("q_proj", "k_proj", "v_proj", "o_proj")
    return attends or (layer.endswith(".mlp") and name in ("gate_proj", "up_proj", "down_proj"))


def table(seconds: Mapping[int, Sequence[float]], sequences: int) -> list[str]:
    """Lines of a Markdown table.

    Shows the first quintile of each case's step times, because other processes may have slowed the rest.

    Args:
        seconds: durations of steps, by the number of adapters.
    """
    lines = ["| adapters | ms a step | tokens/s | of the base's |", "|---|---|---|---|"]
    usual = {count: statistics.quantiles(found, n=5)[0] for count, found in seconds.items()}
    for count, found in usual.items():
        lines.append(f"| {count} | {found * 1e3:.1f} | {sequences / found:.0f} | {usual[0] / found:.2f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="qwen3-0.6b")
    parser.add_argument("--sequences", type=int, default=32)
    parser.add_argument("--adapters", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--one-thread", action="store_true")
    parser.add_argument("--rounds", type=int, default=12)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        build_config(arguments.shape, Path(folder))
        most = max(arguments.adapters)
        decoding = Decoding(Path(folder), arguments.sequences, most, arguments.rank, arguments.one_thread)
        cases = (0, *arguments.adapters)
        for count in cases:
            decoding.seconds(count)  # warm-up, in which steps are recorded
        seconds: dict[int, list[float]] = {count: [] for count in cases}
        for _ in range(arguments.rounds):
            for count, found in seconds.items():
                found += decoding.seconds(count)
        decoding.close()
    print(heading())
    print(f"\n{arguments.shape}, {arguments.sequences} sequences, rank {arguments.rank}, all linear layers\n")
    print("\n".join(table(seconds, arguments.sequences)))


if __name__ == "__main__":
    main()
