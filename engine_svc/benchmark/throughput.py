"""`quire bench throughput`: measures how fast all prompts of a dataset are answered."""

from __future__ import annotations

from typing import Any

import click
import uvloop

from engine_svc.benchmark.batch import Batch, Prompt, run_batch, running_engine, write_json
from quire.bench.datasets import samples
from quire.bench.prompt_tokenizer import FolderTokenizer
from quire.log import setup_logging
from quire.options.bench_engine import ThroughputOptions
from quire.options.dataset import DatasetOptions
from quire.options.engine import EngineOptions
from quire.options.log import LogOptions
from quire.options.model import ModelOptions


def main(
    throughput: ThroughputOptions, dataset: DatasetOptions, model: ModelOptions, engine: EngineOptions, log: LogOptions
) -> None:
    """Measures and reports the throughput.

    Raises:
        StartupError: the model cannot be served, a file is missing, or a prompt does not fit.
    """
    setup_logging("bench", log)
    tokenizer = FolderTokenizer(model)
    chosen = samples(dataset, engine.generation.seed or 0, lambda: tokenizer)
    prompts = [Prompt(tokenizer.encode(each.prompt, special_tokens=True), each.output_tokens) for each in chosen]
    batch = uvloop.run(_measure(prompts, throughput, model, engine))
    result = throughput_result(model.served_names[0], len(prompts), batch)
    click.echo(
        f"Throughput: {result['requests_per_second']:.2f} requests/s, {result['tokens_per_second']:.2f} total tokens/s,"
        f" {batch.output_tokens / batch.seconds:.2f} output tokens/s"
    )
    click.echo(f"Total num prompt tokens:  {batch.prompt_tokens}")
    click.echo(f"Total num output tokens:  {batch.output_tokens}")
    if throughput.output_json:
        write_json(throughput.output_json, result)


def throughput_result(model: str, requests: int, batch: Batch) -> dict[str, Any]:
    """The result, with the same keys as vLLM's."""
    tokens = batch.prompt_tokens + batch.output_tokens
    return {
        "model_id": model,
        "elapsed_time": batch.seconds,
        "num_requests": requests,
        "total_num_tokens": tokens,
        "requests_per_second": requests / batch.seconds,
        "tokens_per_second": tokens / batch.seconds,
    }


async def _measure(
    prompts: list[Prompt], throughput: ThroughputOptions, model: ModelOptions, engine: EngineOptions
) -> Batch:
    async with running_engine(model, engine, max(len(prompts), throughput.num_warmups)) as worker:
        if warmups := [prompts[number % len(prompts)] for number in range(throughput.num_warmups)]:
            await run_batch(worker, warmups, throughput.n)
        return await run_batch(worker, prompts, throughput.n)
