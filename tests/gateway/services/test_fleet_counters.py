"""Fleet-wide counter sums never decrease."""

from __future__ import annotations

from gateway.services.fleet_counters import FleetCounters
from quire.v1 import common_pb2


def test_fleet_counters_grow_through_restarts_and_departures() -> None:
    def counters(tokens: int, buckets: list[int]) -> common_pb2.EngineCounters:
        histogram = common_pb2.Histogram(bounds=[1, 2], counts=buckets, sum=float(sum(buckets)))
        return common_pb2.EngineCounters(generation_tokens=tokens, iteration_tokens=histogram)

    fleet = FleetCounters()
    fleet.take("a", counters(10, [1, 2, 3]))
    fleet.take("a", counters(15, [2, 2, 3]))
    fleet.take("b", counters(100, [0, 0, 1]))
    assert fleet.total.generation_tokens == 115
    assert list(fleet.total.iteration_tokens.counts) == [2, 2, 4]
    fleet.take("a", counters(4, [1, 0, 0]))  # after a restart
    assert fleet.total.generation_tokens == 119
    assert list(fleet.total.iteration_tokens.counts) == [3, 2, 4]
    assert fleet.total.iteration_tokens.sum == 9
    fleet.take("b", counters(101, [0, 0, 1]))  # back after an absence, without a restart
    assert fleet.total.generation_tokens == 120
    assert list(fleet.total.iteration_tokens.counts) == [3, 2, 4]


def test_buckets_that_differ_are_left_out() -> None:
    fleet = FleetCounters()
    fleet.take("a", common_pb2.EngineCounters(iteration_tokens=common_pb2.Histogram(bounds=[1], counts=[1, 1], sum=2)))
    fleet.take("b", common_pb2.EngineCounters(iteration_tokens=common_pb2.Histogram(bounds=[9], counts=[5, 5], sum=9)))
    assert list(fleet.total.iteration_tokens.counts) == [1, 1]


def test_workers_that_count_no_such_thing_are_no_hindrance() -> None:
    fleet, without = FleetCounters(), common_pb2.EngineCounters(draft_accepted_tokens=common_pb2.Histogram(counts=[0]))
    guessing = common_pb2.Histogram(bounds=[0, 1], counts=[2, 3, 4], sum=11)
    fleet.take("a", without)
    fleet.take("b", common_pb2.EngineCounters(draft_accepted_tokens=guessing))
    fleet.take("a", without)
    assert fleet.total.draft_accepted_tokens == guessing


def test_only_so_many_workers_are_remembered() -> None:
    fleet = FleetCounters()
    for number in range(5000):
        fleet.take(f"10.0.0.{number}:1", common_pb2.EngineCounters(computed_tokens=1))
    assert fleet.total.computed_tokens == 5000
    assert len(fleet._last) == 4096
