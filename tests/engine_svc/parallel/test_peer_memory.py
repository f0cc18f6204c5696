"""Which all-reduces use peer memory between GPUs. There are no GPUs: they and torch's part are fakes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric_memory

from engine_svc.parallel import group as groups
from engine_svc.parallel import peer_memory
from engine_svc.parallel.dual_batch import DualBatch
from engine_svc.parallel.group import ParallelGroup, join_groups
from engine_svc.parallel.layout import ParallelLayout
from engine_svc.parallel.peer_memory import PeerMemory, reaches_all, share_peers

CPU, META, CUDA = torch.device("cpu"), torch.device("meta"), torch.device("cuda:1")
HERE, ELSEWHERE = 7, 8


def memory(device: torch.device = META) -> PeerMemory:
    return PeerMemory(torch.empty(2**18, dtype=torch.uint8, device=device), "some group")


@pytest.mark.parametrize(
    ("shape", "dtype", "sums"),
    [
        ((1, 4096), torch.bfloat16, True), ((32, 4096), torch.bfloat16, True), ((33, 4096), torch.bfloat16, False),
        ((16, 4096), torch.float32, True), ((17, 4096), torch.float32, False), ((1, 4096), torch.float16, False),
        ((1, 7), torch.bfloat16, False), ((0, 4096), torch.bfloat16, False), ((2, 2), torch.float64, False),
    ],
)  # fmt: skip
def test_small_tensors_are_summed_so(shape: tuple[int, int], dtype: torch.dtype, sums: bool) -> None:
    assert memory().sums(torch.empty(shape, dtype=dtype, device=META)) == sums


def test_torch_takes_what_it_is_given() -> None:
    """Tensors pass torch's own checks of shapes and types, without real memory; some are not contiguous."""
    for given in (torch.empty((3, 64), dtype=torch.bfloat16, device=META), torch.empty((8, 4), device=META).t()):
        found = memory().all_reduce(given)
        assert (found.shape, found.dtype) == (given.shape, given.dtype)


def test_a_group_chooses_by_the_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PeerMemory, "all_reduce", lambda self, tensor: tensor + 1)
    monkeypatch.setattr(dist, "all_reduce", lambda tensor, group: tensor.add_(2))
    group = ParallelGroup(0, 2, cast("Any", "NCCL's"), peers=memory(CPU))
    assert group.all_reduce(torch.zeros(16)).eq(1).all()
    assert group.all_reduce(torch.zeros(2**17)).eq(2).all()
    assert group.all_reduce(torch.zeros(16, dtype=torch.float16)).eq(2).all()


def yes(_own: int, _other: int) -> bool:
    return True


@pytest.mark.parametrize(
    ("places", "can_access", "reaches"),
    [
        ([(HERE, 0), (HERE, 1), (HERE, 2)], yes, True),
        ([(HERE, 0), (HERE, 1), (ELSEWHERE, 2)], yes, False),
        ([(HERE, 0), (HERE, 0)], yes, False),  # each process sees only its own GPU
        ([(HERE, 0), (HERE, 1), (HERE, 2)], lambda own, other: (own, other) != (1, 2), False),
    ],
)
def test_who_reaches_whom(places: list[tuple[int, int]], can_access: Callable[[int, int], bool], reaches: bool) -> None:
    assert all(reaches_all(places, rank, can_access) for rank in range(len(places))) == reaches


class Group:
    """A group of two ranks, in which this is the first."""

    group_name = "some group"

    def size(self) -> int:
        return 2


@pytest.mark.parametrize("lacking", ["nothing", "reach here", "reach there", "memory here", "memory there"])
def test_all_ranks_have_it_or_none(lacking: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever rank lacks something, all ranks make the same queries of each other."""
    asked: list[bool] = []

    def of_all(what: bool, group: Any, device: torch.device) -> bool:
        asked.append(what)
        return what and lacking != ("reach there", "memory there")[len(asked) - 1]

    def rendezvous(memory: torch.Tensor, group_name: str) -> None:
        assert group_name == Group.group_name
        if lacking == "memory here":
            raise RuntimeError("it cannot be mapped")

    monkeypatch.setattr(peer_memory, "_reaches", lambda group, device: lacking != "reach here")
    monkeypatch.setattr(peer_memory, "_all", of_all)
    monkeypatch.setattr(symmetric_memory, "empty", lambda size, dtype, device: torch.empty(size, dtype=dtype))
    monkeypatch.setattr(symmetric_memory, "rendezvous", rendezvous)
    found = share_peers(cast("Any", Group()), CPU)
    assert (found is not None) == (lacking == "nothing")
    assert len(asked) == (1 if "reach" in lacking else 2)


@pytest.mark.parametrize(
    ("device", "options", "asked"),
    [
        (CPU, {}, ["memory of a machine"]), (CPU, {"custom": False}, []), (CUDA, {}, ["memory of GPUs"]),
        (CUDA, {"custom": False}, []), (CUDA, {"sums_in_order": True}, []),
    ],
)  # fmt: skip
def test_what_is_shared_when_ranks_meet(
    device: torch.device, options: dict[str, bool], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With sums in a fixed order, GPU memory is not shared, since there the size decides how sums are computed."""
    found: list[str] = []
    monkeypatch.setattr(dist, "init_process_group", lambda *given, **named: None)
    monkeypatch.setattr(groups, "_new_group", lambda ranks, backend: Group())
    monkeypatch.setattr(groups, "DualBatch", lambda device: DualBatch())  # no stream
    monkeypatch.setattr(groups, "share_memory", lambda *given: found.append("memory of a machine"))
    monkeypatch.setattr(groups, "share_peers", lambda *given: found.append("memory of GPUs"))
    join_groups(ParallelLayout(tensor=2, pipeline=2), 0, "file", device, **options)
    assert found == asked
