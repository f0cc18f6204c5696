"""How many workers the present load needs: the formula, and the average over time of what a router knows."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.router_cost import SilentWorker
from quire.options.kv_transfer import PRODUCER
from quire.runners import ENCODE, GENERATE, POOLING
from quire.v1 import common_pb2
from router.autoscaling import (
    BACKLOG_SECONDS,
    HALF_LIFE_SECONDS,
    SAMPLE_SECONDS,
    Autoscaling,
    Group,
    Queued,
    Wanted,
    WorkerFigures,
    wanted_workers,
)
from router.index.prefix_index import PrefixIndex
from router.workers.state import Condition, State
from tests.router.conftest import StartEngine, StartRouter
from tests.support.manual_clock import ManualClock
from tests.support.router_client import generation
from tests.support.waiting import eventually

TARGET = 0.5
ENCODING = Group("m", ENCODE)
GENERATING, PREFILLING, EMBEDDING = Group("m", GENERATE), Group("m", "prefill"), Group("m", POOLING)
IDLE = WorkerFigures(max_sequences=10, kv_tokens=1000, seconds_per_token=0.001)


def figures(**changed: float) -> WorkerFigures:
    return WorkerFigures(**{"max_sequences": 10, "kv_tokens": 1000, "seconds_per_token": 0.001} | changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("workers", "queued", "at_workers", "in_queue"),
    [
        ([IDLE], Queued(), 0, 0),
        ([figures(sequences=5)], Queued(), 1, 0),
        ([figures(sequences=5), IDLE], Queued(), 1, 0),  # what there is too much of changes nothing
        ([figures(sequences=15), figures(sequences=10)], Queued(), 5, 0),
        ([figures(kv_usage=0.9, sequences=1)], Queued(), 1.8, 0),
        ([figures(kv_usage=0.5, prefill_tokens=500)], Queued(), 2, 0),
        ([figures(tokens_per_second=750)], Queued(), 1.5, 0),
        ([figures(tokens_per_second=500, prefill_tokens=5000, kv_tokens=1e6)], Queued(), 2, 0),
        ([figures(sequences=5, kv_usage=0.25)], Queued(), 1, 0),  # the scarcest counts, not the sum
        ([IDLE], Queued(sequences=20), 0, 4),
        ([IDLE, IDLE], Queued(sequences=20), 0, 4),
        ([IDLE, figures(max_sequences=30)], Queued(sequences=30), 0, 4),  # by the average: 10 and 30 at once
        ([IDLE], Queued(kv_tokens=3000), 0, 6),
        ([IDLE], Queued(prefill_tokens=20_000), 0, 4),
        ([figures(sequences=5)], Queued(sequences=5), 1, 1),
        ([WorkerFigures(sequences=7, prefill_tokens=7)], Queued(7, 7, 7), 0, 0),  # nothing is known of what it can do
    ],
)  # fmt: skip
def test_the_scarcest_resource_decides(
    workers: list[WorkerFigures], queued: Queued, at_workers: float, in_queue: float
) -> None:
    assert BACKLOG_SECONDS == 10
    assert wanted_workers(workers, queued, TARGET) == pytest.approx((at_workers, in_queue))


def test_routers_that_share_workers_ask_for_what_one_would() -> None:
    """The largest of the workers' parts and the sum of the queues' is what a router with all requests would want."""
    workers = [figures(sequences=5), figures(sequences=10)]
    apart = [wanted_workers(workers, Queued(number, 10 * number, 0), TARGET) for number in (3, 0, 7)]
    together = wanted_workers(workers, Queued(10, 100, 0), TARGET)
    assert max(each.workers for each in apart) + sum(each.queue for each in apart) == pytest.approx(sum(together))


class Replica(SilentWorker):
    """A worker of model `m`, in any state."""

    def __init__(self, number: int, **info: Any) -> None:
        super().__init__(number, PrefixIndex(1024, lambda: 0.0))
        self.state = State.READY
        self.learn(common_pb2.ModelInfo(served_model_names=["m"], max_num_seqs=10, **info))

    @property
    def condition(self) -> Condition:
        return Condition(self.state)

    def beat(
        self, now: float, sequences: int = 0, computed_tokens: int = 0, milliseconds: float = 0.0, waiting: int = 0
    ) -> None:
        counters = common_pb2.EngineCounters(computed_tokens=computed_tokens)
        counters.model_execute_milliseconds.sum = milliseconds
        load = common_pb2.EngineLoad(running_sequences=sequences, counters=counters, waiting_prefill_tokens=waiting)
        self.load.heartbeat(load, now)


class Scaled:
    """The averages of some workers and of queues that hold what a test says."""

    def __init__(self, *workers: Replica) -> None:
        self.workers = workers
        self.clock = ManualClock()
        self.requests: dict[str, int] = {}
        self.tokens: dict[str, int] = {}
        room: Any = SimpleNamespace(by_model=lambda: self.requests, tokens_by_model=lambda: self.tokens)
        empty: Any = SimpleNamespace(by_model=dict, tokens_by_model=dict)
        runners = {GENERATE: room, POOLING: empty}
        self.autoscaling = Autoscaling(lambda: self.workers, runners, TARGET, self.clock)

    def after(self, seconds: float) -> dict[Group, Wanted]:
        self.clock.seconds += seconds
        self.autoscaling.sample()
        return dict(self.autoscaling.wanted)


def test_the_numbers_follow_the_load_at_their_half_life() -> None:
    worker = Replica(0)
    scaled = Scaled(worker)
    assert scaled.after(0) == {}  # it has reported nothing
    worker.beat(0, sequences=10)
    assert scaled.after(SAMPLE_SECONDS / 2) == {}
    assert scaled.after(SAMPLE_SECONDS) == {GENERATING: (2, 0)}
    worker.beat(0, sequences=0)
    scaled.requests["m"] = 10  # what was at the worker waits again: the sum stays
    assert scaled.after(HALF_LIFE_SECONDS)[GENERATING] == pytest.approx((1, 1))
    scaled.requests.clear()
    assert scaled.after(HALF_LIFE_SECONDS)[GENERATING] == pytest.approx((0.5, 0.5))


def test_tokens_count_per_second() -> None:
    worker = Replica(0, max_num_batched_tokens=100)
    scaled = Scaled(worker)
    worker.beat(0, computed_tokens=5000)
    assert scaled.after(0)[GENERATING].workers == 0
    worker.beat(HALF_LIFE_SECONDS, computed_tokens=5000 + 400 * int(HALF_LIFE_SECONDS))
    each = worker.load.speed.seconds_per_token + worker.load.speed.seconds_per_step / 100
    assert scaled.after(HALF_LIFE_SECONDS)[GENERATING].workers == pytest.approx(400 * each / TARGET / 2)


def test_workers_that_drain_count_and_those_that_are_away_change_nothing() -> None:
    worker, other = Replica(0), Replica(1)
    scaled = Scaled(worker, other)
    for each in (worker, other):
        each.beat(0, sequences=5)
    worker.state = State.DRAINING
    assert scaled.after(0) == {GENERATING: (2, 0)}
    worker.state = other.state = State.UNREACHABLE
    assert scaled.after(HALF_LIFE_SECONDS) == {GENERATING: (2, 0)}
    scaled.workers = ()
    assert scaled.after(HALF_LIFE_SECONDS) == {}


def test_encoders_count_by_the_time_that_images_take() -> None:
    """They take one at a time, however many wait: a full one that is behind by ten seconds counts twice."""
    encoder, other = Replica(0, runner=ENCODE), Replica(1, runner=ENCODE)
    scaled = Scaled(encoder, other, Replica(2))
    encoder.beat(0, sequences=30, computed_tokens=1000, milliseconds=4000, waiting=2500)  # 4 ms each
    assert scaled.after(0) == {ENCODING: (pytest.approx(1 / TARGET), 0)}
    tokens = 250 * int(HALF_LIFE_SECONDS)
    encoder.beat(30, computed_tokens=1000 + tokens, milliseconds=4000 + 4 * tokens)
    assert scaled.after(HALF_LIFE_SECONDS)[ENCODING] == pytest.approx((1 / TARGET, 0))
    other.beat(60, waiting=5000)  # that has encoded nothing yet
    encoder.beat(60, computed_tokens=1000 + tokens, milliseconds=4000 + 4 * tokens)
    assert scaled.after(HALF_LIFE_SECONDS)[ENCODING] == pytest.approx((0.5 / TARGET, 0))


def test_prompts_that_wait_count_where_they_are_computed() -> None:
    generating, prefilling, embedding = Replica(0), Replica(1, kv_role=PRODUCER), Replica(2, runner=POOLING)
    scaled = Scaled(generating, prefilling, embedding)
    for worker in scaled.workers:
        worker.beat(0, sequences=5)
    scaled.requests["m"], scaled.tokens["m"], scaled.requests["unknown"] = 10, 40_000, 10
    wanted = scaled.after(0)
    assert set(wanted) == {GENERATING, PREFILLING, EMBEDDING}
    assert wanted[GENERATING].queue == 2  # ten at once
    assert wanted[PREFILLING].queue == pytest.approx(40_000 / 10 * prefilling.load.speed.seconds_per_token / TARGET)
    assert wanted[EMBEDDING] == (0, 0)  # its texts take no places


async def test_a_router_counts_its_encoders(start_engine: StartEngine, start_router: StartRouter) -> None:
    running = await start_router((await start_engine(runner=ENCODE)).address)
    core, labels = running.router.core, {"model_name": "fake", "role": ENCODE, "load": "workers"}

    def is_told() -> bool:
        core.autoscaling._sampled = -math.inf
        return running.router.metrics.get_sample_value("quire_router_wanted_workers", labels) == 0

    await eventually(is_told)


async def test_a_router_tells_prometheus(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine(silent=True, max_num_seqs=1)
    running = await start_router(engine.address, autoscaling_target_utilization=1.0)
    labels = {"model_name": "fake", "role": GENERATE}

    def told(load: str) -> float:
        return running.router.metrics.get_sample_value("quire_router_wanted_workers", {**labels, "load": load}) or 0.0

    async with running.client.session() as session:
        for number in range(5):
            await session.start(number, generation([number], 5, model="fake"))
        await eventually(lambda: len(engine.live) + running.router.dispatcher.waiting.waiting == 5)
        running.router.core.autoscaling._sampled = -math.inf
        await eventually(lambda: told("workers") == len(engine.live) and told("queue") == 5 - len(engine.live) > 0)
