"""`quire bench serve`: measures a server with an OpenAI API from a client's perspective."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click
import uvloop

from quire.bench.answer import Answer, AnswerReader, EventReader, WholeReader
from quire.bench.api import ServerApi
from quire.bench.arrivals import arrivals
from quire.bench.connections import Connections, Target
from quire.bench.datasets import samples
from quire.bench.figures import (
    METRICS,
    details,
    parse_objectives,
    parse_percentiles,
    spread,
    totals,
    values_of,
)
from quire.bench.load import Call, Run, run_load, wait_until_ready
from quire.bench.plot import distributions
from quire.bench.progress import Progress
from quire.bench.prompt_tokenizer import choose_tokenizer
from quire.bench.report import errors, parse_metadata, result_path, table, write_result
from quire.bench.settings import ServeBenchmark
from quire.errors import StartupError
from quire.open_files import allow_open_files
from quire.unix_socket import HOST, socket_path

_OPEN_FILES = 65536


def main(**groups: Any) -> None:
    """Runs the benchmark and reports the result.

    Raises:
        StartupError: no server answers, a file is missing, options contradict each other; or every request failed.
    """
    benchmark = ServeBenchmark(**groups)
    metrics, percentiles = benchmark.metrics, parse_percentiles(benchmark.result.metric_percentiles)
    objectives, metadata = parse_objectives(benchmark.result.goodput), parse_metadata(benchmark.result.metadata)
    due = arrivals(benchmark.dataset.num_prompts, benchmark.traffic)
    api = ServerApi(benchmark.url, benchmark.headers, benchmark.tls)
    with closing(api):
        model = benchmark.model_name(_listed(api, benchmark.server.ready_check_timeout_sec))
        calls = _calls(benchmark, api, model, due)
    allow_open_files(_OPEN_FILES)  # each concurrent request needs one
    run = uvloop.run(_run(benchmark, calls))

    tokenizer = benchmark.server.tokenizer or benchmark.server.model or model
    result = {
        "date": datetime.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S"),
        **benchmark.setting(benchmark.server.model or model, tokenizer, len(run.answers)),
        **metadata,
        **totals(run, objectives),
    }
    for metric in metrics:
        result |= spread(metric, values_of(metric, run.answers), percentiles)
    click.echo(table(result, benchmark.traffic, metrics))
    if said := errors(run.answers):
        click.echo(said, err=True)
    _keep(benchmark, result, run)
    if not result["completed"]:
        sys.exit(1)


def _listed(api: ServerApi, seconds: float) -> list[str]:
    """Names of the server's models, once it answers.

    Raises:
        StartupError: it does not answer within that time.
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return api.models()
        except StartupError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(min(1.0, max(0.0, deadline - time.monotonic())))


def _calls(benchmark: ServeBenchmark, api: ServerApi, model: str, due: Sequence[float]) -> list[Call]:
    server = benchmark.server
    chosen = samples(
        benchmark.dataset, benchmark.traffic.seed, lambda: choose_tokenizer(server.tokenizer, server.model, api, model)
    )
    names = benchmark.asked_names(model, len(chosen))
    return [
        Call(benchmark.body(name, sample), f"{server.request_id_prefix}{index}", sample.prompt_tokens, seconds)
        for index, (sample, name, seconds) in enumerate(zip(chosen, names, due, strict=False))
    ]


async def _run(benchmark: ServeBenchmark, calls: Sequence[Call]) -> Run:
    kind = "text/event-stream"
    reads: Callable[[Answer], AnswerReader] = EventReader
    if benchmark.answers_come_whole:
        kind, reads = "application/json", WholeReader
    headers = {"content-type": "application/json", "accept": kind, **benchmark.headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    file = socket_path(benchmark.url)
    base = f"http://{HOST}" if file else benchmark.url
    connections = Connections(Target(base + benchmark.endpoint, lines, benchmark.tls, reads, file))
    server, progress = benchmark.server, Progress(len(calls), shown=not benchmark.result.disable_tqdm)
    timeout, limit = server.request_timeout_seconds, benchmark.traffic.max_concurrency
    try:
        if server.ready_check_timeout_sec and (
            wrong := await wait_until_ready(connections, calls[0], server.ready_check_timeout_sec)
        ):
            raise StartupError(
                f"{benchmark.url} was not ready after --ready-check-timeout-sec {server.ready_check_timeout_sec:g}: "
                f"{wrong}"
            )
        warmups = [calls[index % len(calls)] for index in range(benchmark.traffic.num_warmups)]
        at_once = [Call(call.body, f"{call.request_id}-warm", call.prompt_tokens) for call in warmups]
        await run_load(connections, at_once, limit, timeout, lambda: None)
        return await run_load(connections, calls, limit, timeout, progress.advance)
    finally:
        progress.close()
        connections.close()


def _keep(benchmark: ServeBenchmark, result: dict[str, Any], run: Run) -> None:
    """Writes the result file and the plot, as far as requested."""
    options = benchmark.result
    path = result_path(options, benchmark.server, benchmark.traffic, str(result["model_id"]), str(result["date"]))
    if options.save_result or options.append_result or options.save_detailed:
        kept = {**result, **(details(run.answers) if options.save_detailed else {})}
        write_result(path, kept, append=options.append_result)
        click.echo(f"Result: {path}")
    if options.plot:
        target = path.with_suffix(".svg") if options.plot == "auto" else Path(options.plot)
        panels = [(METRICS[metric][0], values_of(metric, run.answers)) for metric in ("ttft", "tpot")]
        drawing = distributions(f"{result['model_id']}, {benchmark.url}", panels)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(drawing, encoding="utf-8")
        except OSError as error:
            raise StartupError(f"--plot {target} cannot be written: {error}.") from error
        click.echo(f"Plot: {target}")
