"""Speeds learnt from heartbeats, ejection of outliers, and poison, on a clock of the test's own."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from quire.errors import Internal
from quire.v1 import common_pb2
from router.requests.crash_suspects import Poison
from router.workers.outlier_ejection import Outliers, Standing
from router.workers.speed import StepLine, WorkerSpeed

numbers = itertools.count(1)


@dataclass
class Clock:
    now: float = 1000.0

    def time(self) -> float:
        return self.now


@dataclass
class FakeWorker:
    clock: Clock
    standing: Standing = field(default_factory=Standing)

    @property
    def ready(self) -> bool:
        return self.standing.ejected_until <= self.clock.now


def fleet(count: int) -> tuple[Clock, list[FakeWorker], Outliers]:
    clock = Clock()
    workers = [FakeWorker(clock) for _ in range(count)]
    return clock, workers, Outliers(lambda: workers, clock.time)


def test_five_errors_in_a_row_eject_for_longer_each_time() -> None:
    clock, workers, outliers = fleet(4)
    for seconds in (10, 20, 40):
        for _ in range(4):
            outliers.failed(workers[0])
        assert workers[0].ready
        outliers.succeeded(workers[0])
        for _ in range(5):
            outliers.failed(workers[0])
        assert not workers[0].ready
        assert "5 errors in a row" in workers[0].standing.reason
        clock.now += seconds - 0.1
        assert not workers[0].ready
        clock.now += 0.2
        assert workers[0].ready


def test_never_more_than_half_and_never_the_last() -> None:
    _, workers, outliers = fleet(4)
    for worker in workers:
        for _ in range(9):
            outliers.failed(worker)
    assert [worker.ready for worker in workers] == [False, False, True, True]
    _, (only,), alone = fleet(1)
    for _ in range(9):
        alone.failed(only)
    assert only.ready


def test_a_worker_that_becomes_far_slower_rests_and_one_that_always_was_does_not() -> None:
    clock, workers, outliers = fleet(4)
    for _ in range(200):
        for number, worker in enumerate(workers):
            worker.standing.decoded(10, 2.0 if number == 3 else 0.2)  # the last one is ten times as slow by nature
    for second in range(30):
        clock.now += 1
        workers[0].standing.decoded(10, 0.24)  # a fifth slower: no reason
        workers[1].standing.decoded(10, 4.0)
        outliers.sweep()
        if second < 10:
            assert workers[1].ready
    assert [worker.standing.ejections for worker in workers] == [0, 1, 0, 0]
    assert "ms per token" in workers[1].standing.reason


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
    """A worker's counters as they grow."""

    speed: WorkerSpeed = field(default_factory=WorkerSpeed)
    steps: int = 0
    tokens: float = 0.0
    seconds: float = 0.0

    def beat(self, now: float, steps: int = 0, tokens: float = 0.0, seconds: float = 0.0) -> None:
        """So many more steps, each of so many tokens and so long."""
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
    worker.beat(0.0)  # from before this router came
    assert not worker.speed.known
    worker.beat(0.25, 10, 1, 0.005)
    assert sum(figures(worker.speed)) == pytest.approx(0.005, rel=0.01)
    worker.steps, worker.tokens, worker.seconds = 5, 5.0, 0.025
    worker.beat(0.5)
    worker.beat(0.75, 10, 1, 0.005)
    assert sum(figures(worker.speed)) == pytest.approx(0.005, rel=0.01)


def test_a_slow_worker_is_known_within_seconds_and_gets_another_chance_when_it_idles() -> None:
    fast, slow = Heartbeats(), Heartbeats()
    slow.speed.line = fast.speed.line  # they are of one make
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


def same(seed: int | None = None, prompt: int = 1, **fields: Any) -> common_pb2.Generation:
    """A request; all that differs between two attempts differs between any two."""
    sampling = common_pb2.SamplingParams(seed=seed, logit_bias={1: 1.0, 2: 2.0})
    name = str(next(numbers))
    return common_pb2.Generation(
        prompt_token_ids=[prompt], sampling=sampling, request_id=name, traceparent=name, timeout_ms=int(name), **fields
    )


def test_a_request_that_was_aboard_two_crashes_is_kept_out_for_a_while() -> None:
    clock = Clock()
    poison = Poison(clock)  # type: ignore[arg-type]  # it only asks for the time
    poison.check(same())
    assert not poison.crashed(same())
    poison.check(same())
    assert not poison.crashed(same(prompt=2))
    assert poison.crashed(same())
    with pytest.raises(Internal, match=r"another 30 s\."):
        poison.check(same())
    for other in (same(prompt=2), same(seed=1), same(tenant="somebody"), same(cache_salt="salt"), same(model="other")):
        poison.check(other)
    clock.now += 31
    poison.check(same())
    assert poison.crashed(same())
    with pytest.raises(Internal, match=r"another 60 s\."):
        poison.check(same())
    clock.now += 1201
    poison.check(same())
    assert not len(poison)
    for number in range(5000):
        poison.crashed(same(prompt=number))
    assert len(poison) <= 4096


def test_a_seed_counts_where_callers_cannot_be_told_apart() -> None:
    poison = Poison(Clock())  # type: ignore[arg-type]  # it only asks for the time
    for seed in range(4):
        assert not poison.crashed(same(seed))
    assert not poison.crashed(same(7, tenant="t"))
    assert poison.crashed(same(8, tenant="t"))
    with pytest.raises(Internal):
        poison.check(same(9, tenant="t"))


def test_a_request_that_begins_to_answer_is_innocent() -> None:
    poison = Poison(Clock())  # type: ignore[arg-type]  # it only asks for the time
    assert not poison.crashed(same())
    poison.clear(same())
    assert not poison.crashed(same())
