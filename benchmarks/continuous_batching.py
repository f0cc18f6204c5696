"""Compares the engine with the Transformers library's continuous batching, on the same prompts in one process.

`python -m benchmarks.continuous_batching --shape qwen3-0.6b --streams 32`: random weights, greedy, bfloat16; the two
take turns.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.engine_alone import EngineAlone
from benchmarks.load import Workload
from benchmarks.machine import heading
from benchmarks.models import SHAPES, build_config

_DEADLINE_SECONDS = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="tiny-llama")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 32])
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    folder = Path(".cache/configurations") / arguments.shape
    build_config(arguments.shape, folder)
    workloads = [
        Workload(streams, 1, arguments.input_len, arguments.output_len, SHAPES[arguments.shape]["vocab_size"])
        for streams in arguments.streams
    ]
    print(heading())
    ours: list[list[float]] = []
    theirs: list[list[float]] = []
    for _ in range(arguments.rounds):
        ours.append(run_engine(folder, arguments.device, workloads))
        theirs.append(run_transformers(folder, arguments.device, workloads))
    print(f"`{arguments.shape}` on {arguments.device}, {arguments.input_len} tokens in, {arguments.output_len} out.\n")
    print("| streams | Transformers tok/s | Quire tok/s | ratio |\n|---|---|---|---|")
    for index, streams in enumerate(arguments.streams):
        peer, mine = (statistics.median(rates[index] for rates in side) for side in (theirs, ours))
        print(f"| {streams} | {peer:.0f} | {mine:.0f} | {mine / peer:.2f} |")


def run_engine(folder: Path, device: str, workloads: list[Workload]) -> list[float]:
    """Output tokens per second of each workload."""
    longest = max(workload.input_length + workload.output_length for workload in workloads)
    with EngineAlone(str(folder), load_format="dummy", device=device, max_model_len=longest) as engine:
        engine.run(_warm_up(workloads))
        return [engine.run(workload).tokens_per_second for workload in workloads]


def run_transformers(folder: Path, device: str, workloads: list[Workload]) -> list[float]:
    """Output tokens per second of each workload."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16).eval()
    # Both generate every token they are asked for.
    greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
    with model.continuous_batching_context_manager(generation_config=greedy, block=True, timeout=5) as manager:

        def run(workload: Workload) -> float:
            start = time.perf_counter()
            manager.add_requests(inputs=workload.prompts(), max_new_tokens=workload.output_length)
            tokens, waiting = 0, workload.streams
            while waiting:
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    tokens += len(result.generated_tokens)
                    waiting -= 1
                elif time.perf_counter() - start > _DEADLINE_SECONDS or not manager.is_running():
                    raise RuntimeError("Transformers' continuous batching stopped; its log above says why.")
            if tokens != workload.streams * workload.output_length:
                raise RuntimeError(f"Transformers' continuous batching wrote {tokens} tokens.")
            return tokens / (time.perf_counter() - start)

        run(_warm_up(workloads))
        return [run(workload) for workload in workloads]


def _warm_up(workloads: list[Workload]) -> Workload:
    return Workload(max(workload.streams for workload in workloads), 1, 16, 8, 256, seed=99)


if __name__ == "__main__":
    main()
