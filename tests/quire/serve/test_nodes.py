"""The stacks of nodes that share one engine."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from quire.errors import StartupError
from quire.options.data_parallel import DataParallelOptions
from quire.options.nodes import NodeOptions
from quire.options.parallel import ParallelOptions
from quire.options.serve import ServeOptions
from quire.serve.layout import StackOptions, with_derived
from tests.quire.serve.test_layout import layout_of, specs_of, stack_options, values


def stack(node_rank: int, headless: bool, **gateway: Any) -> StackOptions:
    made = stack_options(1, ServeOptions(data_parallel=DataParallelOptions(headless=headless)), **gateway)
    parallel = ParallelOptions(tensor_parallel_size=4, nodes=NodeOptions(2, node_rank, "192.0.2.1"))
    return dataclasses.replace(made, engine=dataclasses.replace(made.engine, parallel=parallel))


def test_node_0_has_the_whole_stack_and_the_others_have_ranks_alone() -> None:
    first, second = specs_of(stack(0, False)), specs_of(stack(1, True))
    assert list(first) == ["engine", "router", "tokenizer", "gateway"]
    assert list(second) == ["engine"]
    for rank, specs in enumerate((first, second)):
        assert values(specs["engine"], "--nnodes") == ["2"]
        assert values(specs["engine"], "--node-rank") == ([str(rank)] if rank else [])
        assert values(specs["engine"], "--master-addr") == ["192.0.2.1"]
        assert not values(specs["engine"], "--register-with")


def test_a_node_with_an_api_key_needs_no_token_of_others() -> None:
    assert with_derived(stack(1, True, api_key=("key",))).security.grpc_token


def test_a_node_counts_the_gpus_for_its_own_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    options = stack(0, False)
    parallel = dataclasses.replace(options.engine.parallel, distributed_executor_backend="mp")
    options = dataclasses.replace(options, engine=dataclasses.replace(options.engine, parallel=parallel))
    monkeypatch.setattr("quire.serve.processes.count_gpus", lambda: 2)
    assert "engine" in specs_of(options)
    monkeypatch.setattr("quire.serve.processes.count_gpus", lambda: 1)
    with pytest.raises(StartupError, match="2 ranks needs 2 GPUs, but this machine has 1"):
        specs_of(options)


def test_who_has_the_api_is_not_left_open() -> None:
    with pytest.raises(StartupError, match=r"--node-rank 1 has no API: add --headless"):
        layout_of(stack(1, False))
    with pytest.raises(StartupError, match=r"--headless needs .*; or, with --nnodes, --node-rank"):
        layout_of(stack(0, True))
