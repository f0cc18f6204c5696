"""Statistics computed from known times."""

from __future__ import annotations

import pytest

from quire.bench.answer import Answer
from quire.bench.figures import (
    parse_metrics,
    parse_objectives,
    parse_percentiles,
    percentile,
    spread,
    totals,
    values_of,
)
from quire.bench.load import Run
from quire.errors import StartupError

# Sent at 10 s: a chunk after 0.2 s, then three more, the last with two tokens.
SLOW = Answer(7, start=10.0, queued=0.5, times=[10.2, 10.3, 10.5, 10.6], output_tokens=5)
QUICK = Answer(3, start=11.0, times=[11.1], output_tokens=1)
FAILED = Answer(9, start=10.0, error="500: no")
RUN = Run(2.0, [SLOW, QUICK, FAILED])


@pytest.mark.parametrize(
    ("metric", "seconds"),
    [
        ("ttft", [0.2, 0.1]),
        ("tpot", [0.1]),  # undefined for an answer of one token
        ("itl", [0.1, 0.2, 0.1]),
        ("e2el", [0.6, 0.1]),
        ("client_queue_time", [0.5, 0.0]),
        ("e2el_including_client_queue", [1.1, 0.1]),
    ],
)
def test_times_of_those_that_succeeded(metric: str, seconds: list[float]) -> None:
    assert values_of(metric, RUN.answers) == pytest.approx(seconds)


def test_totals() -> None:
    assert totals(RUN, {}) == {
        "duration": 2.0, "completed": 2, "failed": 1, "total_input_tokens": 10, "total_output_tokens": 6,
        "request_throughput": 1.0, "request_goodput": None, "output_throughput": 3.0, "total_token_throughput": 8.0,
        "max_output_tokens_per_s": 5.0, "max_concurrent_requests": 1,
    }  # fmt: skip


def test_the_peak_counts_tokens_and_not_pieces() -> None:
    drafted = Answer(1, start=0.0, times=[0.5, 1.5, 1.6, 1.7], output_tokens=12)
    vector = Answer(5, start=0.0, times=[1.0])
    found = totals(Run(2.0, [drafted, vector]), {})
    assert (found["output_throughput"], found["max_output_tokens_per_s"]) == (6.0, 9.0)
    assert totals(Run(0.25, [QUICK]), {})["max_output_tokens_per_s"] == 4.0


@pytest.mark.parametrize(
    ("objectives", "good"),
    [(["ttft:150"], 1), (["ttft:250"], 2), (["ttft:250", "tpot:50"], 1), (["e2el:50"], 0), (["tpot:100.1"], 2)],
)
def test_goodput_counts_requests_that_keep_to_all(objectives: list[str], good: int) -> None:
    assert totals(RUN, parse_objectives(objectives))["request_goodput"] == good / 2


def test_without_any_success_figures_are_zero() -> None:
    found = totals(Run(1.0, [FAILED]), {})
    assert (found["completed"], found["max_output_tokens_per_s"]) == (0, 0.0)
    assert set(spread("ttft", [], [99]).values()) == {0.0}


def test_spread() -> None:
    found = spread("itl", [0.004, 0.001, 0.003, 0.002], [25, 99.9])
    assert found == pytest.approx(
        {"mean_itl_ms": 2.5, "median_itl_ms": 2.5, "std_itl_ms": 1.25**0.5, "p25_itl_ms": 1.75, "p99.9_itl_ms": 3.997}
    )


@pytest.mark.parametrize(("number", "value"), [(0, 1.0), (50, 2.0), (75, 3.0), (100, 4.0), (90, 3.6)])
def test_percentiles_lie_between_values(number: float, value: float) -> None:
    assert percentile([1.0, 1.0, 2.0, 3.0, 4.0], number) == pytest.approx(value)


@pytest.mark.parametrize(
    ("parse", "given", "words"),
    [
        (parse_metrics, "ttft,tbt", "tbt is not one of ttft"),
        (parse_percentiles, "99,p50", "--metric-percentiles 99,p50"),
        (parse_percentiles, "101", "0 to 100"),
        (parse_objectives, ["itl:5"], "--goodput itl:5"),
        (parse_objectives, ["ttft:"], "--goodput ttft:"),
        (parse_objectives, ["ttft:nan"], "--goodput ttft:nan"),
    ],
)
def test_what_cannot_be_read_is_told(parse: object, given: object, words: str) -> None:
    with pytest.raises(StartupError, match=words):
        parse(given)  # type: ignore[operator]
