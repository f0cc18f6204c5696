"""Speeds learnt from heartbeats, ejection of outliers, and poison, on a clock of the test's own."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from quire.errors import Internal
from quire.v1 import common_pb2
from router.poison import Poison
from router.speed import StepTimes
from router.standing import Outliers, Standing


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


def test_step_times_are_told_from_mixed_steps() -> None:
    source = random.Random(0)
    times = StepTimes()
    for _ in range(300):
        tokens = source.choice((1, 8, 32, 256, 512))
        times.observe(tokens, 0.008 + 6e-5 * tokens)
    assert times.seconds_per_step == pytest.approx(0.008, rel=0.01)
    assert times.seconds_per_token == pytest.approx(6e-5, rel=0.01)
    for _ in range(400):  # it slows down to half its speed
        tokens = source.choice((1, 8, 32, 256, 512))
        times.observe(tokens, 0.016 + 12e-5 * tokens)
    assert times.seconds_per_token == pytest.approx(12e-5, rel=0.05)


def test_step_times_from_one_kind_of_step_are_plausible() -> None:
    times = StepTimes()
    for _ in range(50):
        times.observe(8, 0.02)
    assert 0 < times.seconds_per_token <= 0.02 / 8
    assert 0.01 <= times.seconds_per_step + 8 * times.seconds_per_token <= 0.03


def test_large_steps_that_are_alike_are_not_taken_for_steps_without_fixed_time() -> None:
    times = StepTimes()
    times.observe(2048, 0.008 + 6e-5 * 2048)
    assert times.seconds_per_step == pytest.approx(0.008, rel=0.5)
    assert times.seconds_per_token == pytest.approx(6e-5, rel=0.1)


def test_heartbeats_are_differences_and_restarts_do_no_harm() -> None:
    def counters(steps: int, tokens: float, milliseconds: float) -> common_pb2.EngineCounters:
        return common_pb2.EngineCounters(
            iteration_tokens=common_pb2.Histogram(counts=[steps], sum=tokens),
            model_execute_milliseconds=common_pb2.Histogram(counts=[steps], sum=milliseconds),
        )

    times = StepTimes()
    times.heartbeat(counters(1000, 5e5, 9e9))  # from before this router came
    assert not times.known
    times.heartbeat(counters(1010, 5e5 + 10, 9e9 + 50))
    assert times.seconds_per_step + times.seconds_per_token == pytest.approx(0.005, rel=0.01)
    times.heartbeat(counters(5, 5, 25))
    times.heartbeat(counters(15, 15, 75))
    assert times.seconds_per_step + times.seconds_per_token == pytest.approx(0.005, rel=0.01)


def test_a_prompt_that_was_aboard_two_crashes_is_kept_out_for_a_while() -> None:
    clock = Clock()
    poison = Poison(clock)  # type: ignore[arg-type]  # it only asks for the time
    bad, good = (common_pb2.Generation(prompt_token_ids=[n], request_id=f"{n}") for n in range(2))
    poison.check(bad)
    assert not poison.suspect(bad)
    poison.check(bad)
    assert not poison.suspect(good)
    again = common_pb2.Generation(prompt_token_ids=[0], request_id="another name")
    assert poison.suspect(again)
    with pytest.raises(Internal, match="crashed 2 times"):
        poison.check(bad)
    poison.check(good)
    clock.now += 601
    poison.check(bad)
    for number in range(5000):
        poison.suspect(common_pb2.Generation(prompt_token_ids=[number + 10]))
    assert len(poison) <= 4096
