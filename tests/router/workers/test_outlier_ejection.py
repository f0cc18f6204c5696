"""Ejection of outliers, on a clock controlled by the test."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from router.workers.outlier_ejection import EjectionRecord, OutlierEjection


@dataclass
class Clock:
    now: float = 1000.0

    def time(self) -> float:
        return self.now


@dataclass
class FakeWorker:
    clock: Clock
    names: Sequence[str] = ("m",)
    ejection: EjectionRecord = field(default_factory=EjectionRecord)

    @property
    def ready(self) -> bool:
        return self.ejection.ejected_until <= self.clock.now


def fleet(count: int) -> tuple[Clock, list[FakeWorker], OutlierEjection]:
    clock = Clock()
    workers = [FakeWorker(clock) for _ in range(count)]
    return clock, workers, OutlierEjection(lambda: workers, clock.time)


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
        assert "5 errors in a row" in workers[0].ejection.reason
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


def test_workers_of_other_models_do_not_stand_in_for_it() -> None:
    _, workers, outliers = fleet(4)
    workers[0].names, workers[1].names = ("alone",), ("m", "adapter")
    for worker in workers:
        for _ in range(9):
            outliers.failed(worker)
    assert [worker.ready for worker in workers] == [True, False, True, True]


def test_workers_are_compared_with_those_of_their_model() -> None:
    """One of a small model's three workers slows down, in a fleet that mostly serves a large model."""
    clock, workers, outliers = fleet(8)
    for worker in workers[:3]:
        worker.names = ("small",)
    for _ in range(200):
        for worker in workers:
            worker.ejection.decoded(10, 0.2 if worker.names == ("small",) else 4.0)
    outliers.sweep()
    for _ in range(20):
        clock.now += 1
        workers[0].ejection.decoded(10, 2.0)
        outliers.sweep()
    assert [worker.ejection.ejections for worker in workers] == [1] + [0] * 7


def test_a_worker_that_becomes_far_slower_rests_and_one_that_always_was_does_not() -> None:
    clock, workers, outliers = fleet(4)
    for _ in range(200):
        for number, worker in enumerate(workers):
            worker.ejection.decoded(10, 2.0 if number == 3 else 0.2)  # the last one is always ten times slower
    outliers.sweep()
    for second in range(20):
        clock.now += 1
        workers[0].ejection.decoded(10, 0.24)  # 20% slower: no reason to eject
        workers[1].ejection.decoded(10, 4.0)
        outliers.sweep()
        if second < 10:
            assert workers[1].ready
    assert [worker.ejection.ejections for worker in workers] == [0, 1, 0, 0]
    assert "ms per token" in workers[1].ejection.reason


def test_the_slower_one_of_two_rests_however_busy_it_is() -> None:
    clock, workers, outliers = fleet(2)
    for _ in range(200):
        for worker in workers:
            worker.ejection.decoded(10, 0.2)
    outliers.sweep()
    for _ in range(15):
        clock.now += 1
        for worker, seconds in zip(workers, (1.0, 0.2), strict=True):
            for _ in range(20):
                worker.ejection.decoded(10, seconds)
        outliers.sweep()
    assert [worker.ejection.ejections for worker in workers] == [1, 0]


def test_all_that_slow_down_together_serve_on() -> None:
    clock, workers, outliers = fleet(2)
    for number in range(200):
        for worker in workers:
            worker.ejection.decoded(10, 0.2 if number < 100 else 2.0)
        clock.now += 1
        outliers.sweep()
    assert not any(worker.ejection.ejections for worker in workers)
