"""Reports the result of a benchmark as a table and as a file."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from quire.bench.answer import Answer
from quire.bench.figures import METRICS
from quire.errors import StartupError
from quire.options.bench import BenchResultOptions, BenchServerOptions, BenchTrafficOptions

_WIDTH, _LABEL = 50, 40
_SHOWN_ERRORS = 5


def table(result: Mapping[str, Any], traffic: BenchTrafficOptions, metrics: Sequence[str]) -> str:
    """The result as the table that vLLM prints."""
    lines = [
        f"{' Serving Benchmark Result ':=^{_WIDTH}}",
        _line("Successful requests:", result["completed"]),
        _line("Failed requests:", result["failed"]),
    ]
    if traffic.max_concurrency is not None:
        lines.append(_line("Maximum request concurrency:", traffic.max_concurrency))
    if not math.isinf(traffic.request_rate):
        lines.append(_line("Request rate configured (RPS):", traffic.request_rate))
    lines += [
        _line("Benchmark duration (s):", result["duration"]),
        _line("Total input tokens:", result["total_input_tokens"]),
        _line("Total generated tokens:", result["total_output_tokens"]),
        _line("Request throughput (req/s):", result["request_throughput"]),
    ]
    if result["request_goodput"] is not None:
        lines.append(_line("Request goodput (req/s):", result["request_goodput"]))
    lines += [
        _line("Output token throughput (tok/s):", result["output_throughput"]),
        _line("Peak output token throughput (tok/s):", result["max_output_tokens_per_s"]),
        _line("Peak concurrent requests:", float(result["max_concurrent_requests"])),
        _line("Total token throughput (tok/s):", result["total_token_throughput"]),
    ]
    for metric in metrics:
        lines += _metric_lines(metric, result)
    return "\n".join([*lines, "=" * _WIDTH])


def _metric_lines(metric: str, result: Mapping[str, Any]) -> list[str]:
    name, heading = METRICS[metric]
    kinds = [key.removesuffix(f"_{metric}_ms") for key in result if key.endswith(f"_{metric}_ms")]
    return [
        f"{heading:-^{_WIDTH}}",
        *(_line(f"{kind.capitalize()} {name} (ms):", result[f"{kind}_{metric}_ms"]) for kind in kinds if kind != "std"),
    ]


def _line(label: str, value: float) -> str:
    return f"{label:<{_LABEL}} {value:<10.2f}" if isinstance(value, float) else f"{label:<{_LABEL}} {value:<10}"


def errors(answers: Sequence[Answer]) -> str:
    """The errors, most frequent first; empty if there are none."""
    counts = Counter(answer.error for answer in answers if answer.error)
    return "\n".join(f"{count} failed: {error}" for error, count in counts.most_common(_SHOWN_ERRORS))


def parse_metadata(items: Sequence[str]) -> dict[str, str]:
    """Parses --metadata.

    Raises:
        StartupError: an item has no equals sign.
    """
    pairs = [item.partition("=") for item in items]
    for name, equals, _ in pairs:
        if not equals:
            raise StartupError(f"--metadata {name}: expected KEY=VALUE.")
    return {name.strip(): value.strip() for name, _, value in pairs}


def result_path(
    options: BenchResultOptions, server: BenchServerOptions, traffic: BenchTrafficOptions, model: str, date: str
) -> Path:
    """Path of the result file."""
    rate = f"{traffic.request_rate}qps"
    if traffic.ramp_up_strategy:
        rate = f"ramp-up-{traffic.ramp_up_strategy}-{traffic.ramp_up_start_rps:g}qps-{traffic.ramp_up_end_rps:g}qps"
    limit = f"-concurrency{traffic.max_concurrency}" if traffic.max_concurrency is not None else ""
    name = f"{options.label or server.backend}-{rate}{limit}-{model.rstrip('/').rpartition('/')[2]}-{date}.json"
    return Path(options.result_dir or ".") / (options.result_filename or name)


def write_result(path: Path, result: Mapping[str, Any], *, append: bool) -> None:
    """Writes the result file, or appends to it.

    Raises:
        StartupError: the file cannot be written.
    """
    text = json.dumps(result)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if append and path.exists() and path.stat().st_size:
            text = f"\n{text}"
        with path.open("a" if append else "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise StartupError(f"The result cannot be written to {path}: {error}.") from error
