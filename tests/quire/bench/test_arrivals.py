"""When requests are sent: the rate, its distribution and its growth."""

from __future__ import annotations

import itertools
import math
import statistics

import pytest

from quire.bench.arrivals import arrivals
from quire.errors import StartupError
from quire.options.bench import BenchTrafficOptions

COUNT = 4000


def intervals(options: BenchTrafficOptions) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise([0.0, *arrivals(COUNT, options)])]


def test_without_a_rate_all_are_sent_at_once() -> None:
    assert arrivals(3, BenchTrafficOptions()) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_intervals_are_of_a_gamma_distribution(burstiness: float) -> None:
    found = intervals(BenchTrafficOptions(request_rate=20, burstiness=burstiness, seed=7))
    assert sum(found) == pytest.approx(COUNT / 20)  # for any seed
    variation = statistics.pstdev(found) / statistics.fmean(found)
    assert variation == pytest.approx(1 / math.sqrt(burstiness), rel=0.08)


def test_without_any_chance_intervals_are_equal() -> None:
    found = intervals(BenchTrafficOptions(request_rate=10, burstiness=math.inf))
    assert found == pytest.approx([0.1] * COUNT)


def test_the_seed_decides() -> None:
    first, again, other = (arrivals(9, BenchTrafficOptions(request_rate=5, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(("strategy", "middle"), [("linear", 50.5), ("exponential", 10.0)])
def test_the_rate_grows(strategy: str, middle: float) -> None:
    found = intervals(
        BenchTrafficOptions(
            ramp_up_strategy=strategy, ramp_up_start_rps=1, ramp_up_end_rps=100, burstiness=math.inf
        )
    )  # fmt: skip
    rates = [1 / seconds for seconds in found]
    assert rates[0] == pytest.approx(1)
    assert rates[COUNT // 2] == pytest.approx(middle, rel=0.01)
    assert rates[-1] == pytest.approx(100)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (BenchTrafficOptions(ramp_up_strategy="linear", ramp_up_start_rps=1), "--ramp-up-end-rps"),
        (BenchTrafficOptions(ramp_up_end_rps=1), "--ramp-up-strategy"),
        (
            BenchTrafficOptions(ramp_up_strategy="linear", ramp_up_start_rps=1, ramp_up_end_rps=2, request_rate=3),
            "--request-rate",
        ),
    ],
)
def test_contradictions_are_told(options: BenchTrafficOptions, words: str) -> None:
    with pytest.raises(StartupError, match=words):
        arrivals(4, options)
