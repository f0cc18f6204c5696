"""Which data-parallel ranks a machine runs."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from quire.errors import StartupError
from quire.options.data_parallel import DataParallelOptions
from quire.options.parallel import ParallelOptions
from quire.options.serve import ServeOptions
from quire.serve.data_parallel import Balancing, LocalRanks, find_local_ranks, own_address_at
from quire.serve.layout import StackOptions, with_derived
from tests.quire.serve.test_layout import layout_of, specs_of, stack_options, values


def nodes(headless: bool = False, **options: Any) -> DataParallelOptions:
    return DataParallelOptions(headless=headless, **{f"data_parallel_{name}": options[name] for name in options})


def find(size: int, rank: int | None = None, **options: Any) -> LocalRanks:
    return find_local_ranks(ParallelOptions(data_parallel_size=size, data_parallel_rank=rank), nodes(**options))


@pytest.mark.parametrize(
    ("found", "ranks", "balancing", "has_members_elsewhere"),
    [
        (find(1), range(1), Balancing.INTERNAL, False),
        (find(4), range(4), Balancing.INTERNAL, False),
        (find(4, size_local=2), range(2), Balancing.INTERNAL, True),
        (find(4, size_local=0), range(0), Balancing.INTERNAL, True),
        (find(4, start_rank=0, size_local=1), range(1), Balancing.INTERNAL, True),
        (find(4, start_rank=2, headless=True), range(2, 4), Balancing.INTERNAL, False),
        (find(4, start_rank=1, size_local=2, headless=True), range(1, 3), Balancing.INTERNAL, False),
        (find(4, start_rank=2, hybrid_lb=True), range(2, 4), Balancing.HYBRID, False),
        (find(4, rank=3), range(3, 4), Balancing.EXTERNAL, False),
        (find(4, rank=0, size_local=1, start_rank=0), range(1), Balancing.EXTERNAL, False),
    ],
)
def test_ranks_of_a_machine(found: LocalRanks, ranks: range, balancing: Balancing, has_members_elsewhere: bool) -> None:
    assert (found.ranks, found.balancing, found.has_members_elsewhere) == (ranks, balancing, has_members_elsewhere)
    assert found.rpc_port == (29550 if len(ranks) < found.size else 0)


@pytest.mark.parametrize(
    ("size", "options", "said"),
    [
        (2, {"size_local": 3}, r"ranks 0 to 2, but --data-parallel-size 2 has only ranks 0 to 1"),
        (2, {"rank": 2}, r"rank 2, but --data-parallel-size 2 has only ranks 0 to 1"),
        (4, {"start_rank": 3, "size_local": 2, "headless": True}, "ranks 3 to 4"),
        (4, {"start_rank": 2, "size_local": 0, "headless": True}, "would start nothing"),
        (4, {"headless": True}, "--headless needs --data-parallel-start-rank"),
        (4, {"hybrid_lb": True}, "--data-parallel-hybrid-lb needs --data-parallel-start-rank"),
        (4, {"hybrid_lb": True, "headless": True, "start_rank": 1}, "Leave one of them out"),
        (4, {"start_rank": 2}, "--data-parallel-start-rank 2 makes this an additional node"),
        (4, {"rank": 1, "headless": True, "size_local": 2}, "leave out --data-parallel-size-local, --headless"),
        (4, {"backend": "ray", "size_local": 2}, "With --data-parallel-backend ray, all engines are processes of one"),
        (4, {"rank": 1, "start_rank": 2}, "leave out --data-parallel-start-rank"),
    ],
)
def test_contradictions_are_refused(size: int, options: dict[str, Any], said: str) -> None:
    with pytest.raises(StartupError, match=said):
        find(size, **options)


def stack(
    size: int, rank: int | None = None, *, address: str = "127.0.0.1", gateway: Any = (), **of_nodes: Any
) -> StackOptions:
    made = stack_options(size, ServeOptions(data_parallel=nodes(**of_nodes)), **dict(gateway))
    parallel = ParallelOptions(data_parallel_size=size, data_parallel_rank=rank, data_parallel_address=address)
    return dataclasses.replace(made, engine=dataclasses.replace(made.engine, parallel=parallel))


def test_a_first_node_has_its_router_where_others_find_it() -> None:
    specs = specs_of(stack(4, rpc_port=29561, size_local=1))
    assert list(specs) == ["engine-0", "router", "tokenizer", "gateway"]
    assert values(specs["router"], "--port") == ["29561"]
    assert values(specs["gateway"], "--router-address") == ["127.0.0.1:29561"]
    assert values(specs["engine-0"], "--data-parallel-master-port") == ["29562"]
    assert not values(specs["engine-0"], "--register-with")


def test_a_headless_node_has_engines_that_register_there() -> None:
    specs = specs_of(stack(4, rpc_port=29561, start_rank=2, headless=True))
    assert list(specs) == ["engine-2", "engine-3"]
    for rank, spec in zip((2, 3), specs.values(), strict=True):
        assert values(spec, "--register-with") == ["127.0.0.1:29561"]
        assert values(spec, "--data-parallel-rank") == [str(rank)]
        assert values(spec, "--data-parallel-size") == ["4"]
        assert values(spec, "--data-parallel-master-port") == ["29562"]


def test_nodes_may_have_addresses_of_version_6() -> None:
    first = specs_of(stack(2, rpc_port=29561, size_local=1, address="::1"))
    assert values(first["router"], "--host") == ["::1"]
    assert values(first["gateway"], "--router-address") == ['["[::1]:29561"]']  # JSON: brackets begin a list
    further = specs_of(stack(2, rpc_port=29561, start_rank=1, headless=True, address="::1"))
    assert values(further["engine-1"], "--host") == ["::1"]
    assert values(further["engine-1"], "--register-with") == ['["[::1]:29561"]']
    assert ParallelOptions(data_parallel_address="::1").data_parallel_meeting == "[::1]:29551"


def test_a_rank_alone_has_a_stack_of_its_own() -> None:
    specs = specs_of(stack(4, rank=2))
    assert list(specs) == ["engine-2", "router", "tokenizer", "gateway"]
    assert values(specs["router"], "--port") != ["29550"]


def test_ray_has_the_gpus_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray manages the ranks' GPUs, so those of this machine are not counted."""
    monkeypatch.setattr("quire.serve.processes.count_gpus", lambda: 1)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(
        StartupError, match=r"2 engines need 2 GPUs, but this machine has 1\..*--gpu-memory-utilization 0\.45"
    ):
        specs_of(stack(2))
    for spec in list(specs_of(stack(2, backend="ray")).values())[:2]:
        assert values(spec, "--distributed-executor-backend") == ["ray"]
        assert "CUDA_VISIBLE_DEVICES" not in spec.environment


def test_ranks_of_one_machine_meet_at_a_free_port() -> None:
    layout = layout_of(stack(2))
    assert layout.meeting_port not in (0, 29551, *(int(address.rpartition(":")[2]) for address in layout.own.values()))


def test_nodes_that_ask_for_a_token_need_the_same() -> None:
    keys = {"api_key": ("key",)}
    with pytest.raises(StartupError, match="set the same --grpc-token"):
        with_derived(stack(4, size_local=2, gateway=keys))
    assert with_derived(stack(4, gateway=keys)).security.grpc_token


def test_an_open_network_needs_tls_or_consent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("quire.serve.layout.own_address_at", lambda address, port: "0.0.0.0")
    with pytest.raises(StartupError, match="reachable from other machines"):
        specs_of(stack(4, start_rank=2, headless=True, address="head"))
    specs = specs_of(stack(4, start_rank=2, headless=True, address="head", gateway={"insecure": True}))
    assert values(specs["engine-2"], "--host") == ["0.0.0.0"]
    assert values(specs["engine-2"], "--register-with") == ["head:29550"]


def test_the_address_that_others_see() -> None:
    assert own_address_at("127.0.0.1", 1) == "127.0.0.1"
    with pytest.raises(StartupError, match=r"--data-parallel-address nowhere.invalid cannot be reached"):
        own_address_at("nowhere.invalid", 1)
