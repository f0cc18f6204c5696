"""Collectives of three ranks in separate processes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.forked_ranks import run_forks

CODE = """
import os, sys
from dataclasses import replace
import torch
from engine_svc.native.library import choose_kernels
from engine_svc.parallel.group import join_groups
from engine_svc.parallel.layout import ParallelLayout
from engine_svc.parallel.shared_memory import share_memory

rank, folder = int(sys.argv[1]), sys.argv[2]
kernels = choose_kernels("auto", torch.device("cpu"))
shared = join_groups(ParallelLayout(tensor=3), rank, folder + "/meet", torch.device("cpu"), True, kernels).tensor
assert (shared.shared is None) == (kernels is None)
assert share_memory(shared.process_group, rank, kernels if rank < 2 else None, 60) is None  # and so for all
group = replace(shared, shared=None)
wide = torch.randn((3, 5), dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
assert shared.all_gather_last(wide).equal(group.all_gather_last(wide))
assert shared.all_reduce(wide.clone()).equal(group.all_reduce(wide.clone()))  # a type that goes by messages
ragged = wide[:rank + 1]
assert shared.all_gather_rows(ragged, (1, 2, 3)).equal(group.all_gather_rows(ragged, (1, 2, 3)))
found = {}
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    rows = torch.randn((700, 50), generator=torch.Generator().manual_seed(rank)).to(dtype)
    for count in (1, 2, 7, 700):
        found[dtype, count] = group.all_reduce(rows[:count].clone())
        assert shared.all_reduce(rows[:count].clone()).equal(found[dtype, count])
torch.save((rows, found), f"{folder}/{rank}.pt")
os._exit(0)  # gloo's threads now and then abort a process that ends by itself
"""


@pytest.mark.slow
def test_a_sum_over_ranks_does_not_depend_on_how_much_is_summed(tmp_path: Path) -> None:
    assert run_forks(CODE, [(rank, tmp_path) for rank in range(3)]) == [0, 0, 0]
    ranks = [torch.load(tmp_path / f"{rank}.pt") for rank in range(3)]
    for _, found in ranks:
        for (dtype, count), rows in found.items():
            assert rows.equal(found[dtype, 700][:count])
            assert rows.equal(ranks[0][1][dtype, count])
    exact = sum(rows.double() for rows, _ in ranks)
    torch.testing.assert_close(ranks[0][1][torch.float16, 700].double(), exact, atol=5e-3, rtol=1e-3)


GROUPS = """
import os, sys
import torch
from engine_svc.parallel.group import join_groups
from engine_svc.parallel.layout import ParallelLayout

rank, folder = int(sys.argv[1]), sys.argv[2]
groups = join_groups(ParallelLayout(2, 2, 1, 2, 2), rank, folder + "/meet", torch.device("cpu"))
mine = torch.tensor([1.0 + rank])
purposes = ("tensor", "expert", "pipeline", "data", "decode_context")
sums = [getattr(groups, purpose).all_reduce(mine.clone()).item() for purpose in purposes]
assert sums == [[3, 3, 4, 1, 3], [3, 3, 6, 2, 3], [7, 7, 4, 3, 7], [7, 7, 6, 4, 7]][rank], sums
assert [getattr(groups, purpose).rank for purpose in purposes] == [rank % 2, rank % 2, rank // 2, 0, rank % 2]
os._exit(0)  # as above
"""


@pytest.mark.slow
def test_a_group_sums_over_its_own_ranks_alone(tmp_path: Path) -> None:
    assert run_forks(GROUPS, [(rank, tmp_path) for rank in range(4)]) == [0, 0, 0, 0]
