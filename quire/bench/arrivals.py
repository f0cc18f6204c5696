"""Computes when requests are sent."""

from __future__ import annotations

import itertools
import math
from random import Random

from quire.errors import StartupError
from quire.options.bench import BenchTrafficOptions


def arrivals(count: int, options: BenchTrafficOptions) -> list[float]:
    """The time in seconds, from the beginning, at which each request is sent.

    At a constant rate the times are scaled to the expected total duration, so that every seed has the same rate.

    Raises:
        StartupError: the options contradict each other.
    """
    rates = [_rate(index / max(1, count - 1), options) for index in range(count)]
    source = Random(options.seed)  # noqa: S311  (arrivals are no secrets)
    times = list(itertools.accumulate(_interval(rate, options.burstiness, source) for rate in rates))
    if options.ramp_up_strategy or not times or not times[-1]:
        return times
    stretch = count / options.request_rate / times[-1]
    return [time * stretch for time in times]


def _rate(progress: float, options: BenchTrafficOptions) -> float:
    """Requests per second once this fraction of them has been sent."""
    start, end = options.ramp_up_start_rps, options.ramp_up_end_rps
    if options.ramp_up_strategy is None:
        if start is not None or end is not None:
            raise StartupError("--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy.")
        return options.request_rate
    if start is None or end is None:
        raise StartupError("--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps.")
    if not math.isinf(options.request_rate):
        raise StartupError("--ramp-up-strategy replaces --request-rate: leave --request-rate out.")
    if options.ramp_up_strategy == "linear":
        return start + (end - start) * progress
    return float(start * (end / start) ** progress)


def _interval(rate: float, burstiness: float, source: Random) -> float:
    if math.isinf(rate):
        return 0.0
    return 1 / rate if math.isinf(burstiness) else source.gammavariate(burstiness, 1 / (rate * burstiness))
