"""Two pipeline stages in separate processes, which do nothing but communicate."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.forked_ranks import run_forks

CODE = """
import os, sys, time
from types import SimpleNamespace
import torch
from engine_svc.parallel.group import join_groups
from engine_svc.parallel.layout import ParallelLayout
from engine_svc.parallel.stages import Stage
from engine_svc.runner.rank import RankModel
from engine_svc.runner.stage_link import StageLink
from engine_svc.sampling.rows import SampledRows
from engine_svc.upkeep import ReleaseMemory, RestoreWeights

rank, folder, cpu = int(sys.argv[1]), sys.argv[2], torch.device("cpu")
groups = join_groups(ParallelLayout(pipeline=2), rank, folder + "/meet", cpu)
recorded = []


class StandIn:
    def __init__(self):
        buffers = SimpleNamespace(
            token_ids=torch.tensor([[5, 6, 7]]), record=lambda rows, token_ids: recorded.append(token_ids.tolist())
        )
        self._link = StageLink(groups, Stage(range(1), rank == 0, rank == 1), 4, buffers, cpu, torch.float32)
        self.settle = self._link.settle

    def run(self, count):
        rows = SampledRows([0] * count, list(range(count)))
        if rank == 0:
            self._link.send(None, SimpleNamespace(sampled=lambda plan: (None, rows)), torch.ones(count, 4))
        else:
            assert self._link.receive(count).equal(torch.ones(count, 4))
            time.sleep(0.2)  # the first stage is done by then
            self._link.return_tokens(rows)

    def release_caches(self):
        pass

    close = release_caches


model = RankModel(SimpleNamespace(load=lambda *folders: StandIn()), cpu, rank)
for count in (1, 2, 3):
    model.runner.run(count)
    model.upkeep(ReleaseMemory(forgets_weights=True))
    model.upkeep(RestoreWeights())
assert recorded == ([[5], [5, 6], [5, 6, 7]] if rank == 0 else [])
os._exit(0)  # gloo's threads now and then abort a process that ends by itself
"""


@pytest.mark.slow
def test_a_stage_that_forgets_its_weights_waits_for_the_tokens_that_it_has_asked_for(tmp_path: Path) -> None:
    assert run_forks(CODE, [(rank, tmp_path) for rank in range(2)]) == [0, 0]
