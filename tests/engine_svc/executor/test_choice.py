"""Which executor a worker gets if its options do not say."""

from __future__ import annotations

import dataclasses
import importlib.util
from typing import Any

import pytest

from engine_svc.executor import choice
from engine_svc.executor.choice import choose_executor
from quire.errors import StartupError
from quire.options.nodes import NodeOptions
from quire.options.parallel import ParallelOptions


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    def of(gpus: int, has_ray: bool) -> None:
        monkeypatch.setattr(choice, "count_gpus", lambda: gpus)
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if has_ray else None)

    return of


@pytest.mark.parametrize("named", [None, "auto"])
@pytest.mark.parametrize(
    ("ranks", "device", "gpus", "has_ray", "expected"),
    [
        (1, "auto", 0, True, "uni"), (1, "auto", 8, True, "uni"), (8, "auto", 8, True, "mp"),
        (9, "auto", 8, True, "ray"),
        (9, "cuda", 8, True, "ray"), (9, "cpu", 8, True, "mp"), (64, "auto", 0, False, "mp"),
    ],
)  # fmt: skip
def test_ranks_stay_on_this_machine_while_they_fit(
    machine: Any, named: str | None, ranks: int, device: str, gpus: int, has_ray: bool, expected: str
) -> None:
    machine(gpus, has_ray)
    options = ParallelOptions(tensor_parallel_size=ranks, distributed_executor_backend=named)
    assert choose_executor(options, device) == expected


def test_what_is_named_is_taken(machine: Any) -> None:
    machine(1, False)
    for name in ("uni", "mp", "ray", "external_launcher"):
        assert (
            choose_executor(ParallelOptions(tensor_parallel_size=4, distributed_executor_backend=name), "auto") == name
        )


def test_ranks_that_do_not_fit_have_to_be_spread_by_something(machine: Any) -> None:
    machine(2, False)
    with pytest.raises(StartupError, match=r"4 ranks need one GPU each, but this machine has 2\. Install quire\[ray\]"):
        choose_executor(ParallelOptions(tensor_parallel_size=4), "auto")


def test_nodes_each_need_gpus_for_their_share(machine: Any) -> None:
    machine(2, True)
    options = ParallelOptions(tensor_parallel_size=4, nodes=NodeOptions(2, 0, "head"))
    assert choose_executor(options, "auto") == "mp"
    with pytest.raises(StartupError, match=r"Each of --nnodes 2 needs 4 GPUs, but this machine has 2"):
        choose_executor(dataclasses.replace(options, tensor_parallel_size=8), "auto")
    with pytest.raises(StartupError, match=r"--node-rank 1 only has ranks for the engine of node 0"):
        choose_executor(dataclasses.replace(options, nodes=NodeOptions(2, 1, "head")), "auto")
