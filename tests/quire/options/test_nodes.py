"""Options of an engine over several nodes."""

from __future__ import annotations

from typing import Any

import pytest

from quire.errors import StartupError
from quire.options.base import build
from quire.options.parallel import ParallelOptions


def options(**given: Any) -> ParallelOptions:
    sizes = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "nnodes": 4, "master_addr": "head"}
    return build(ParallelOptions, sizes | given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"nnodes": 3}, r"--nnodes 3 does not divide the 8 ranks of --tensor-parallel-size 4 x --pipeline-parallel"),
        ({"nnodes": 16}, "does not divide"),
        ({"node_rank": 4}, "--node-rank 4 is not below --nnodes 4"),
        ({"nnodes": 1, "node_rank": 1}, "--node-rank 1 is not below --nnodes 1"),
        ({"master_addr": None}, "--nnodes 4 needs --master-addr"),
        ({"distributed_executor_backend": "ray"}, "needs --distributed-executor-backend mp, not ray"),
        ({"data_parallel_size": 2}, "--data-parallel-size 2 has several engines"),
    ],
)
def test_contradictions_are_explained(given: dict[str, Any], said: str) -> None:
    with pytest.raises(StartupError, match=said):
        options(**given).check_nodes()


def test_nodes_have_equal_shares() -> None:
    for given in ({}, {"node_rank": 3}, {"distributed_executor_backend": "mp"}):
        options(**given).check_nodes()
    assert options().num_local_ranks == 2
    ParallelOptions().check_nodes()
    assert ParallelOptions(tensor_parallel_size=4).num_local_ranks == 4
