"""Worker speeds learned from heartbeats."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from quire.v1 import common_pb2
from router.workers.speed import StepLine, WorkerSpeed


def line_of(*steps: tuple[float, float]) -> StepLine:
    line = StepLine()
    for tokens, seconds in steps:
        line.observe(tokens, seconds)
    return line


def figures(line: StepLine | WorkerSpeed) -> tuple[float, float]:
    return line.seconds_per_step, line.seconds_per_token


def test_step_times_are_told_from_mixed_steps() -> None:
    source = random.Random(0)
    tokens = [source.choice((1, 8, 32, 256, 512)) for _ in range(300)]
    line = line_of(*((count, 0.008 + 6e-5 * count) for count in tokens))
    assert figures(line) == pytest.approx((0.008, 6e-5), rel=0.01)
    for count in tokens * 7:  # it slows down to half its speed
        line.observe(count, 0.016 + 12e-5 * count)
    assert line.seconds_per_token == pytest.approx(12e-5, rel=0.05)


def test_step_times_from_one_kind_of_step_are_plausible() -> None:
    small = line_of(*[(8, 0.02)] * 50)
    assert 0 < small.seconds_per_token <= 0.02 / 8
    assert 0.01 <= small.seconds_per_step + 8 * small.seconds_per_token <= 0.03
    assert figures(line_of((2048, 0.008 + 6e-5 * 2048))) == pytest.approx((0.008, 6e-5), rel=0.5)


def test_tokens_cost_something_whatever_else_makes_steps_longer() -> None:
    falling = line_of((1, 0.004), (2, 0.003), (8, 0.0029), (16, 0.0028), (40, 0.0020))
    assert 1e-6 < falling.seconds_per_token < 1e-4
    assert falling.seconds_per_step > 0


@dataclass
class Heartbeats:
    """Accumulates a worker's counters and reports them as heartbeats."""

    speed: WorkerSpeed = field(default_factory=WorkerSpeed)
    steps: int = 0
    tokens: float = 0.0
    seconds: float = 0.0

    def beat(self, now: float, steps: int = 0, tokens: float = 0.0, seconds: float = 0.0) -> None:
        """Reports this many more steps, each with this many tokens and seconds."""
        self.steps += steps
        self.tokens += steps * tokens
        self.seconds += steps * seconds
        counters = common_pb2.EngineCounters(
            computed_tokens=round(self.tokens),
            model_execute_milliseconds=common_pb2.Histogram(counts=[self.steps], sum=self.seconds * 1e3),
        )
        self.speed.heartbeat(counters, now)


def test_heartbeats_are_differences_and_restarts_do_no_harm() -> None:
    worker = Heartbeats(steps=1000, tokens=5e5, seconds=9e6)
    worker.beat(0.0)  # from before this router started
    assert not worker.speed.known
    worker.beat(0.25, 10, 1, 0.005)
    assert sum(figures(worker.speed)) == pytest.approx(0.005, rel=0.01)
    worker.steps, worker.tokens, worker.seconds = 5, 5.0, 0.025
    worker.beat(0.5)
    worker.beat(0.75, 10, 1, 0.005)
    assert sum(figures(worker.speed)) == pytest.approx(0.005, rel=0.01)


def test_a_slow_worker_is_known_within_seconds_and_gets_another_chance_when_it_idles() -> None:
    fast, slow = Heartbeats(), Heartbeats()
    slow.speed.line = fast.speed.line  # both are of the same make
    for worker in (fast, slow):
        worker.beat(0.0)
    for beat in range(1, 41):
        fast.beat(beat / 4, 20, 16 if beat % 4 else 200, 0.01 + 1e-4 * (16 if beat % 4 else 200))
        slow.beat(beat / 4, 7, 16 if beat % 4 else 200, 0.03 + 3e-4 * (16 if beat % 4 else 200))
    times = slow.speed.seconds_per_token / fast.speed.seconds_per_token
    assert 2.5 < times < 3.5
    for beat in range(41, 400):
        fast.beat(beat / 4, 20, 16, 0.0116)
        slow.beat(beat / 4)
    assert slow.speed.seconds_per_step / slow.speed.line.seconds_per_step < 1.1


def test_a_worker_that_has_not_told_is_as_fast_as_the_others_of_its_make() -> None:
    known, new = Heartbeats(), Heartbeats()
    new.speed.line = known.speed.line
    for beat in range(40):
        known.beat(beat / 4, 10, 8 if beat % 3 else 128, 0.001 + 1e-5 * (8 if beat % 3 else 128))
    new.beat(10.0)
    assert figures(new.speed) == pytest.approx((0.001, 1e-5), rel=0.05)
