"""Compares `quire bench serve` with vLLM's client on one server: whether both report the same figures.

`python -m benchmarks.bench_serve --vllm VIRTUAL_ENVIRONMENT` lets both clients send the same prompts at the same time,
so that other load on the machine affects both alike; to the bundled model, and to a server with a known pace. It prints
their figures and the ratios.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from typing import Any

from benchmarks.machine import heading
from benchmarks.processes import running_stack
from benchmarks.stopping import unwinding
from quire.bench.datasets import samples
from quire.bench.prompt_tokenizer import FolderTokenizer
from quire.model_folder import DEMO_MODEL
from quire.options.dataset import DatasetOptions
from quire.options.model import ModelOptions

# Options of both clients for each load, including the number of prompts and the length of answers.
LOADS: Mapping[str, tuple[str, ...]] = {
    "stack, 3 requests/s": ("--request-rate", "3", "--num-prompts", "60", "--custom-output-len", "64"),
    "stack, 2 at a time": ("--max-concurrency", "2", "--num-prompts", "300", "--custom-output-len", "64"),
    "pace, 32 at a time": ("--max-concurrency", "32", "--num-prompts", "256", "--custom-output-len", "200"),
    "slow pace, 4 at a time": ("--max-concurrency", "4", "--num-prompts", "24", "--custom-output-len", "24"),
}
# Loads that go to a server with a known pace: milliseconds to the first chunk, and between two chunks.
PACES: Mapping[str, tuple[int, int]] = {"pace, 32 at a time": (50, 10), "slow pace, 4 at a time": (500, 50)}
_TOKENIZER = str(resources.files("demo_model") / DEMO_MODEL)
FIGURES = (
    "completed", "total_input_tokens", "total_output_tokens", "duration", "request_throughput", "output_throughput",
    "mean_ttft_ms", "median_ttft_ms", "mean_tpot_ms", "median_tpot_ms", "mean_itl_ms", "mean_e2el_ms",
    "median_e2el_ms",
)  # fmt: skip
Figures = Mapping[str, float]
_SECONDS = 300
_ENVIRONMENT = {**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}


def main() -> None:
    arguments = _parse()
    before = heading()
    with tempfile.TemporaryDirectory() as name:
        prompts = _write_prompts(Path(name) / "prompts.jsonl")
        stack = ["--port", str(arguments.port), "--served-model-name", "demo", "--no-enable-prefix-caching"]
        print(before, flush=True)
        for load in arguments.loads:
            pace = PACES.get(load)
            with _paced_server(arguments.port, *pace) if pace else running_stack(DEMO_MODEL, stack):
                rounds = [_round(arguments, LOADS[load], prompts) for _ in range(arguments.rounds)]
                print(report(load, rounds), flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", type=Path, required=True, help="folder of a virtual environment that has vLLM")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--port", type=int, default=8124)
    parser.add_argument("--lock", type=Path, default=Path(os.devnull), help="file that is locked for each round")
    return parser.parse_args()


@contextmanager
def _paced_server(port: int, first: int, between: int) -> Iterator[None]:
    command = [sys.executable, "-m", "benchmarks.paced_server", str(port), str(first), str(between)]
    with unwinding(), subprocess.Popen(command) as process:
        try:
            yield
        finally:
            process.terminate()


def _write_prompts(path: Path) -> Path:
    options = DatasetOptions(num_prompts=512, random_input_len=128)
    found = samples(options, 0, lambda: FolderTokenizer(ModelOptions()))
    path.write_text("".join(json.dumps({"prompt": sample.prompt}) + "\n" for sample in found))
    return path


def _round(arguments: argparse.Namespace, load: Sequence[str], prompts: Path) -> tuple[Figures, Figures]:
    """Figures of vLLM's client and of ours, which is started when vLLM's begins to send requests."""
    common = [
        "bench", "serve", "--model", "demo", "--tokenizer", _TOKENIZER, "--port", str(arguments.port), "--dataset-name",
        "custom", "--dataset-path", str(prompts), "--disable-shuffle", "--ignore-eos", "--temperature", "0",
        "--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result", "--disable-tqdm", *load,
    ]  # fmt: skip
    with arguments.lock.open("w") as lock, tempfile.TemporaryDirectory() as name:
        fcntl.flock(lock, fcntl.LOCK_EX)
        peer, own = Path(name) / "peer.json", Path(name) / "own.json"
        vllm = [str(arguments.vllm / "bin" / "vllm"), *common, "--skip-chat-template", "--result-filename", str(peer)]
        with subprocess.Popen(
            vllm, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=_ENVIRONMENT
        ) as process:
            assert process.stdout is not None
            if not any("main benchmark" in line for line in process.stdout):
                raise RuntimeError("vLLM's client ended before it began")
            command = [sys.executable, "-m", "quire", *common, "--result-filename", str(own)]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=_SECONDS)
            process.stdout.read()
        return _figures(peer), _figures(own)


def _figures(file: Path) -> Figures:
    result: dict[str, Any] = json.loads(file.read_text())
    return {name: float(result[name]) for name in FIGURES}


def report(load: str, rounds: Sequence[tuple[Figures, Figures]]) -> str:
    """Medians of the rounds and of their ratios, as Markdown."""
    lines = [
        f"**{load}**",
        "",
        "| figure | vLLM's client | quire bench serve | ratio | of each round |",
        "|---" * 5 + "|",
    ]
    for name in FIGURES:
        peer, own = ([figures[client][name] for figures in rounds] for client in (0, 1))
        ratios = [mine / theirs for theirs, mine in zip(peer, own, strict=True)]
        each = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        lines.append(
            f"| {name} | {statistics.median(peer):.2f} | {statistics.median(own):.2f} | "
            f"{statistics.median(ratios):.3f} | {each} |"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
