"""`quire bench latency`: measures how long one batch takes."""

from __future__ import annotations

import statistics
import sys
from random import Random
from typing import Any

import click
import uvloop

from engine_svc.benchmark.batch import Prompt, run_batch, running_engine, write_json
from quire.bench.figures import percentile
from quire.bench.progress import Progress
from quire.log import setup_logging
from quire.options.bench_engine import LatencyOptions
from quire.options.engine import EngineOptions
from quire.options.log import LogOptions
from quire.options.model import ModelOptions

_PERCENTILES = (10, 25, 50, 75, 90, 99)
_MOST_TOKEN_IDS = 10_000


def main(latency: LatencyOptions, model: ModelOptions, engine: EngineOptions, log: LogOptions) -> None:
    """Measures and reports the latency.

    Raises:
        StartupError: the model cannot be served, or a prompt of the batch does not fit.
    """
    setup_logging("bench", log)
    seconds = uvloop.run(_measure(latency, model, engine))
    result = latency_result(model.served_names[0], seconds)
    click.echo(f"Avg latency: {result['avg_latency']:.6f} seconds")
    for number, value in result["percentiles"].items():
        click.echo(f"{number}% percentile latency: {value:.6f} seconds")
    if latency.output_json:
        write_json(latency.output_json, result)


def latency_result(model: str, seconds: list[float]) -> dict[str, Any]:
    """The result, with the same keys as vLLM's.

    Args:
        seconds: duration of each batch.
    """
    ordered = sorted(seconds)
    return {
        "model_id": model,
        "avg_latency": statistics.fmean(seconds),
        "latencies": seconds,
        "percentiles": {str(number): percentile(ordered, number) for number in _PERCENTILES},
    }


async def _measure(latency: LatencyOptions, model: ModelOptions, engine: EngineOptions) -> list[float]:
    source = Random(0)  # noqa: S311  (prompts are no secrets)
    async with running_engine(model, engine, latency.batch_size) as worker:
        most = min(_MOST_TOKEN_IDS, worker.info.limits.vocab_size)
        prompts = [
            Prompt([source.randrange(most) for _ in range(latency.input_len)], latency.output_len)
            for _ in range(latency.batch_size)
        ]
        progress = Progress(latency.num_iters_warmup + latency.num_iters, shown=True, stream=sys.stderr)
        seconds = []
        for _ in range(latency.num_iters_warmup + latency.num_iters):
            seconds.append((await run_batch(worker, prompts, latency.n)).seconds)
            progress.advance()
        progress.close()
    return seconds[latency.num_iters_warmup :]
