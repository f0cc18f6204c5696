"""Cost of serving: the whole stack over HTTP compared with the engine alone in process, on one small model.

`python -m benchmarks.serving` prints, at 1, 8 and 32 streams: output tokens per second, TTFT and TPOT, and the CPU
microseconds that each service spends per streamed token. `--load-format dummy` avoids writing weights first, which
takes minutes for large shapes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine_alone import EngineAlone
from benchmarks.load import Result, Workload, run_http
from benchmarks.machine import heading
from benchmarks.models import SHAPES, build, build_without_weights
from benchmarks.processes import cpu_seconds, running_stack

SERVICES = ("gateway", "tokenizer", "router", "engine")
COLUMNS = (
    "streams", "what", "tok/s", "TTFT mean / p50 / p99 ms", "TPOT mean / p50 / p99 ms",
    "gateway CPU", "tokenizer CPU", "router CPU", "the three", "engine CPU",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One run of one workload."""

    what: str
    streams: int
    result: Result
    cpu_microseconds: dict[str, float]  # service → per output token


def main() -> None:
    arguments = _parse()
    is_dummy = arguments.load_format == "dummy"
    folder = Path(".cache/configurations" if is_dummy else ".cache/models") / arguments.shape
    (build_without_weights if is_dummy else build)(arguments.shape, folder)
    workloads = [
        Workload(streams, arguments.requests, arguments.input_len, arguments.output_len, vocab_size=256, seed=seed)
        for seed, streams in enumerate(arguments.streams)
    ]
    before = heading()
    rows = measure_stack(str(folder), arguments.port, workloads, arguments.load_format)
    rows += measure_engine(str(folder), workloads, arguments.load_format)
    print(before)
    print(report(arguments.shape, workloads[0], sorted(rows, key=lambda row: row.streams)))


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="tiny-llama")
    parser.add_argument("--load-format", choices=["auto", "dummy"], default="auto")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, default=4, help="requests of each stream, one after the other")
    parser.add_argument("--input-len", type=int, default=128)
    parser.add_argument("--output-len", type=int, default=128)
    parser.add_argument("--port", type=int, default=8123)
    return parser.parse_args()


def measure_stack(model: str, port: int, workloads: Sequence[Workload], load_format: str) -> list[Row]:
    """Runs the workloads through gateway, tokenizer, router and engine, after a warm-up."""
    rows = []
    options = ["--port", str(port), "--served-model-name", "bench", "--load-format", load_format]
    with running_stack(model, options) as services:
        asyncio.run(run_http("127.0.0.1", port, "bench", Workload(8, 1, 32, 16, 256, seed=99)))
        for workload in workloads:
            before = {name: cpu_seconds(services[name]) for name in SERVICES}
            result = asyncio.run(run_http("127.0.0.1", port, "bench", workload))
            spent = {name: cpu_seconds(services[name]) - before[name] for name in SERVICES}
            per_token = {name: seconds * 1e6 / result.output_tokens for name, seconds in spent.items()}
            rows.append(Row("stack", workload.streams, result, per_token))
    return rows


def measure_engine(model: str, workloads: Sequence[Workload], load_format: str) -> list[Row]:
    """Runs the same workloads on the engine in this process."""
    rows = []
    with EngineAlone(model, load_format=load_format) as engine:
        engine.run(Workload(8, 1, 32, 16, 256, seed=99))
        for workload in workloads:
            before = cpu_seconds([os.getpid()])
            result = engine.run(workload)
            spent = (cpu_seconds([os.getpid()]) - before) * 1e6 / result.output_tokens
            rows.append(Row("engine alone", workload.streams, result, {"engine": spent}))
    return rows


def report(shape: str, workload: Workload, rows: Sequence[Row]) -> str:
    """The table as Markdown."""
    lines = [
        f"`{shape}`, {workload.input_length} tokens in, {workload.output_length} out, greedy, bfloat16.",
        "The load generator runs on the same cores. CPU is in microseconds per output token.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    for row in rows:
        spent = row.cpu_microseconds
        cells = [f"{spent[name]:.0f}" if name in spent else "" for name in SERVICES]
        three = f"{sum(spent[name] for name in SERVICES[:3]):.0f}" if "gateway" in spent else ""
        first = _spread([timing.first for timing in row.result.timings])
        between = _spread([timing.per_output_token for timing in row.result.timings])
        lines.append(
            f"| {row.streams} | {row.what} | {row.result.tokens_per_second:.0f} | {first} | {between} | "
            f"{cells[0]} | {cells[1]} | {cells[2]} | {three} | {cells[3]} |"
        )
    return "\n".join(lines)


def _spread(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    figures = (statistics.fmean(ordered), ordered[len(ordered) // 2], ordered[int(len(ordered) * 0.99)])
    return " / ".join(f"{figure * 1e3:.1f}" for figure in figures)


if __name__ == "__main__":
    main()
