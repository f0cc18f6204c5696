"""Load estimates and worker states."""

from __future__ import annotations

import pytest

from quire.v1 import common_pb2
from router.workers.load import LoadTracker
from router.workers.state import Facts, Health, State, assess
from router.workers.step_times import StepTimes


def beat(running: int = 0, waiting: int = 0, prefill: int = 0) -> common_pb2.EngineLoad:
    return common_pb2.EngineLoad(
        running_sequences=running, waiting_requests=waiting, waiting_prefill_tokens=prefill, used_kv_blocks=30,
        total_kv_blocks=120,
    )  # fmt: skip


def figures(load: LoadTracker) -> tuple[int, int]:
    return load.sequences, load.prefill_tokens


def test_placements_count_at_once() -> None:
    load = LoadTracker()
    load.heartbeat(beat(), 0.0)
    load.placed(2, prompt_tokens=100, prefill_tokens=100)
    load.placed(1, prompt_tokens=80, prefill_tokens=50)
    assert (figures(load), load.kv_usage) == ((3, 150), 0.25)
    assert load.inflight_requests == 2


def test_a_heartbeat_that_reports_our_own_requests_counts_them_once() -> None:
    load = LoadTracker()
    load.placed(1, prompt_tokens=100, prefill_tokens=20)  # the worker does not say what it will find in its cache
    load.placed(1, prompt_tokens=50, prefill_tokens=50)
    load.heartbeat(beat(running=1, waiting=1, prefill=150), 0.0)
    assert figures(load) == (2, 70)
    load.prefilled(100, 20)
    load.ended(1)
    assert figures(load) == (1, 50)


def test_what_other_routers_placed_counts_too() -> None:
    load = LoadTracker()
    load.placed(1, prompt_tokens=100, prefill_tokens=100)
    load.heartbeat(beat(running=5, waiting=2, prefill=700), 0.0)
    load.placed(1, prompt_tokens=10, prefill_tokens=10)
    assert figures(load) == (8, 710)
    load.heartbeat(beat(running=1, prefill=0), 0.0)
    assert load.sequences == 2


def test_a_worker_that_ends_no_step_though_it_has_work_is_stalled() -> None:
    def at(now: float, step: int, busy: bool = True) -> float:
        load.heartbeat(common_pb2.EngineLoad(step=step, busy=busy), now)
        return load.stalled(now, most_tokens=0)

    load = LoadTracker()
    assert load.stalled(50.0, 0) == 0
    assert at(100.0, 7, busy=False) == 0
    assert at(109.0, 7, busy=False) == 0
    assert at(109.5, 7) == 0
    assert at(110.9, 7) == 0
    assert at(113.0, 7) == 2
    assert at(113.2, 8) == 0
    for _ in range(9):
        load.speed.line.observe(100, 3.0)  # a model whose steps take three seconds
    assert at(140.0, 8) > 1
    assert load.stalled(140.0, most_tokens=100) == 0


def test_what_counts_as_stalled_follows_the_steps_that_the_worker_takes() -> None:
    """On a starved machine, where one step in fifty takes nearly a second."""
    load = LoadTracker()
    histogram = common_pb2.Histogram(bounds=[100, 1000], counts=[0, 0, 0])
    for beat_number in range(20):
        histogram.counts[0] += 49
        histogram.counts[1] += 1
        counters = common_pb2.EngineCounters(model_execute_milliseconds=histogram)
        load.heartbeat(common_pb2.EngineLoad(step=50 * beat_number, busy=True, counters=counters), beat_number / 4)
    last = 19 / 4
    assert not load.stalled(last + 9.9, most_tokens=0)
    assert load.stalled(last + 10.1, most_tokens=0)


def test_step_times_fade_and_begin_anew_with_the_process() -> None:
    def p99(now: float, *counts: int) -> float:
        times.heartbeat(common_pb2.Histogram(bounds=[100, 1000], counts=counts), now)
        return times.p99_seconds

    times = StepTimes()
    assert p99(0.0, 0, 0, 0) == 0
    assert p99(1.0, 0, 10, 0) == 1
    assert p99(2.0, 1000, 10, 0) == 0.1
    assert p99(3.0, 1000, 20, 10) == 1
    assert p99(600.0, 2000, 20, 10) == 0.1  # ten minutes without slow steps
    assert p99(601.0, 0, 3, 0) == 1  # a restarted process
    assert p99(602.0) == 0  # a worker that does not report


READY = Facts(
    retired=False, connected=True, was_connected=True, late=False, stalled=False, health=Health.SERVING,
    was_serving=True, has_model=True, trouble="",
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "state", "reason"),
    [
        ({}, State.READY, ""),
        ({"retired": True}, State.DRAINING, "no longer announced"),
        ({"connected": False, "trouble": "refused"}, State.UNREACHABLE, "refused"),
        ({"connected": False, "was_connected": False}, State.STARTING, "no connection"),
        ({"stalled": True}, State.UNREACHABLE, "stuck in a step"),
        ({"late": True}, State.UNREACHABLE, "no heartbeat"),
        ({"health": Health.NOT_SERVING}, State.DRAINING, "NOT_SERVING"),
        ({"health": Health.NOT_SERVING, "was_serving": False}, State.STARTING, "is loading the model"),
        ({"health": Health.NOT_SERVING, "was_serving": False, "connected": False}, State.STARTING, "is loading"),
        ({"health": Health.UNKNOWN}, State.STARTING, "not known"),
        ({"has_model": False}, State.STARTING, "model"),
    ],
)
def test_states(changes: dict[str, object], state: State, reason: str) -> None:
    condition = assess(READY._replace(**changes))
    assert condition.state is state
    assert reason in condition.reason
    assert bool(condition.reason) == (state is not State.READY)
