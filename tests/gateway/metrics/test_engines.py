"""Metrics of several engines are told apart by vLLM's label `engine`."""

from __future__ import annotations

import pytest

from gateway.metrics.fleet import fleet_metrics
from gateway.metrics.orca import load_report
from gateway.services.fleet import Fleet
from quire.v1 import common_pb2, router_pb2


def worker(address: str, rank: int | None, tokens: int = 0, waiting: int = 0) -> router_pb2.Worker:
    counters = common_pb2.EngineCounters(generation_tokens=tokens)
    accepted = common_pb2.Histogram(bounds=[0, 1], counts=[0, 1, 0], sum=1)
    counters.draft_accepted_tokens.CopyFrom(accepted)
    return router_pb2.Worker(
        address=address,
        state=router_pb2.WORKER_STATE_READY,
        model_info=common_pb2.ModelInfo(served_model_names=["m"], data_parallel_rank=rank),
        load=common_pb2.EngineLoad(waiting_requests=waiting, counters=counters),
    )


def told(fleet: Fleet, *workers: router_pb2.Worker, queued: int = 0) -> dict[str, dict[str, float]]:
    """Metric → engine → value, after the router has reported these workers."""
    fleet._take(router_pb2.ListWorkersResponse(workers=workers))
    fleet._count()
    found: dict[str, dict[str, float]] = {}
    for family in fleet_metrics("vllm:", fleet, {"m": queued} if queued else {}):
        for sample in family.samples:
            assert sample.labels["model_name"] == "m", sample
            found.setdefault(sample.name, {})[sample.labels["engine"]] = sample.value
    return found


@pytest.fixture
def fleet() -> Fleet:
    return Fleet([])


def test_each_rank_is_an_engine(fleet: Fleet) -> None:
    seen = told(fleet, worker("a:1", 0, tokens=10, waiting=1), worker("b:1", 1, tokens=20, waiting=2), queued=5)
    assert seen["vllm:generation_tokens_total"] == {"0": 10, "1": 20}
    assert seen["vllm:num_requests_waiting"] == {"0": 1 + 5, "1": 2}
    assert {frozenset(engines) for engines in seen.values()} == {frozenset({"0", "1"})}
    report = load_report("TEXT", "m", fleet, {"m": 5})
    assert report["endpoint-load-metrics"].endswith("named_metrics.num_requests_waiting=8")


def test_workers_without_ranks_are_one_engine(fleet: Fleet) -> None:
    seen = told(fleet, worker("a:1", None, tokens=10, waiting=1), worker("b:1", None, tokens=20, waiting=2))
    assert (seen["vllm:generation_tokens_total"], seen["vllm:num_requests_waiting"]) == ({"0": 30}, {"0": 3})


def test_workers_that_come_and_go_add_no_series(fleet: Fleet) -> None:
    for number in range(1, 5):
        seen = told(fleet, worker(f"new-{number}:1", 1, tokens=7))
    assert seen["vllm:generation_tokens_total"] == {"1": 4 * 7}
