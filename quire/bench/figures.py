"""Computes a run's metrics, with the keys of vLLM's result files."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from quire.bench.answer import Answer
from quire.bench.load import Run
from quire.errors import StartupError

# Key → (short name, heading).
METRICS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "ttft": ("TTFT", "Time to First Token"),
        "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
        "itl": ("ITL", "Inter-token Latency"),
        "e2el": ("E2EL", "End-to-end Latency"),
        "client_queue_time": ("Client Queue Time", "Client-side Queueing"),
        "e2el_including_client_queue": ("E2EL incl. Client Queue", "Queue-inclusive End-to-end Latency"),
    }
)
_OBJECTIVES = ("ttft", "tpot", "e2el")


def values_of(metric: str, answers: Sequence[Answer]) -> list[float]:
    """The metric's values in seconds over successful requests: one for each request, or for each of its pieces."""
    good = [answer for answer in answers if answer.succeeded]
    if metric == "ttft":
        return [answer.first for answer in good]
    if metric == "tpot":
        return [answer.per_output_token for answer in good if answer.output_tokens > 1]
    if metric == "itl":
        return [seconds for answer in good for seconds in answer.between]
    if metric == "e2el":
        return [answer.latency for answer in good]
    if metric == "client_queue_time":
        return [answer.queued for answer in good]
    return [answer.latency + answer.queued for answer in good]


def totals(run: Run, objectives: Mapping[str, float]) -> dict[str, Any]:
    """Counts and rates.

    Args:
        objectives: upper limits in seconds on a request's ttft, tpot and e2el.
    """
    good = [answer for answer in run.answers if answer.succeeded]
    inputs = sum(answer.prompt_tokens for answer in good)
    outputs = sum(answer.output_tokens for answer in good)
    within = sum(_keeps(answer, objectives) for answer in good)
    tokens, requests = _peaks(good)
    return {
        "duration": run.seconds,
        "completed": len(good),
        "failed": len(run.answers) - len(good),
        "total_input_tokens": inputs,
        "total_output_tokens": outputs,
        "request_throughput": len(good) / run.seconds,
        "request_goodput": within / run.seconds if objectives else None,
        "output_throughput": outputs / run.seconds,
        "total_token_throughput": (inputs + outputs) / run.seconds,
        "max_output_tokens_per_s": max(tokens, outputs / run.seconds),  # a run may end within a second
        "max_concurrent_requests": requests,
    }


def spread(metric: str, values: Sequence[float], percentiles: Sequence[float]) -> dict[str, float]:
    """Mean, median, standard deviation and percentiles of values in seconds, in milliseconds; 0 if there are no
    values."""
    ordered = sorted(values) or [0.0]
    figures = {
        f"mean_{metric}_ms": statistics.fmean(ordered),
        f"median_{metric}_ms": percentile(ordered, 50),
        f"std_{metric}_ms": statistics.pstdev(ordered),
        **{f"p{number:g}_{metric}_ms": percentile(ordered, number) for number in percentiles},
    }
    return {name: seconds * 1000 for name, seconds in figures.items()}


def percentile(ordered: Sequence[float], number: float) -> float:
    """The percentile, linearly interpolated between the two nearest values."""
    place = (len(ordered) - 1) * number / 100
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def details(answers: Sequence[Answer]) -> dict[str, list[Any]]:
    """The per-request data of the result."""
    return {
        "input_lens": [answer.prompt_tokens for answer in answers],
        "output_lens": [answer.output_tokens if answer.succeeded else 0 for answer in answers],
        "ttfts": [answer.first for answer in answers],
        "itls": [answer.between for answer in answers],
        "latencies": [answer.latency for answer in answers],
        "start_times": [answer.start for answer in answers],
        "queue_times": [answer.queued for answer in answers],
        "generated_texts": [answer.text for answer in answers],
        "errors": [answer.error for answer in answers],
    }


def parse_metrics(text: str) -> list[str]:
    """Parses --percentile-metrics.

    Raises:
        StartupError: it names an unknown metric.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in METRICS:
            raise StartupError(f"--percentile-metrics: {name} is not one of {', '.join(METRICS)}.")
    return names


def parse_percentiles(text: str) -> list[float]:
    """Parses --metric-percentiles.

    Raises:
        StartupError: it has something other than percentiles.
    """
    try:
        found = [float(number) for number in text.split(",")]
    except ValueError:
        found = [-1.0]
    if not all(0 <= number <= 100 for number in found):
        raise StartupError(f"--metric-percentiles {text}: expected numbers from 0 to 100, such as 50,90,99.")
    return found


def parse_objectives(items: Sequence[str]) -> dict[str, float]:
    """Parses --goodput: metric → seconds.

    Raises:
        StartupError: it is malformed.
    """
    return dict(_parse_objectives(items))


def _parse_objectives(items: Sequence[str]) -> Iterator[tuple[str, float]]:
    for item in items:
        name, _, text = item.partition(":")
        try:
            milliseconds = float(text)
        except ValueError:
            milliseconds = -1.0
        if name not in _OBJECTIVES or not milliseconds >= 0:
            raise StartupError(f"--goodput {item}: expected ttft, tpot or e2el with milliseconds, such as ttft:500.")
        yield name, milliseconds / 1000


def _keeps(answer: Answer, objectives: Mapping[str, float]) -> bool:
    times = {"ttft": answer.first, "tpot": answer.per_output_token, "e2el": answer.latency}
    return all(times[name] <= most for name, most in objectives.items())


def _peaks(answers: Sequence[Answer]) -> tuple[float, int]:
    """The maximum number of tokens received, and of requests in progress, in any one second.

    Servers report only the token count of a whole answer, which is spread evenly over its pieces.
    """
    if not answers:
        return 0.0, 0
    begin = min(answer.start for answer in answers)
    seconds = int(max(answer.start + answer.latency for answer in answers) - begin) + 1
    tokens, requests = [0.0] * seconds, [0] * seconds
    for answer in answers:
        for time in answer.times:
            tokens[int(time - begin)] += answer.output_tokens / len(answer.times)
        for second in range(int(answer.start - begin), int(answer.start + answer.latency - begin) + 1):
            requests[second] += 1
    return max(tokens), max(requests)
