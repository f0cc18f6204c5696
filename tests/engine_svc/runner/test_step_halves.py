"""Which steps run as two halves, and how they are split."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from engine_svc.layers.embedding import EmbeddedRows
from engine_svc.parallel.group import ParallelGroups
from engine_svc.parallel.layout import ParallelLayout
from engine_svc.plan import ScheduledSequence, StepPlan
from engine_svc.runner.batch import SlotBuffers
from engine_svc.runner.step_halves import StepHalves
from quire.options.dual_batch import DualBatchOptions

TWO = ParallelGroups(ParallelLayout(tensor=2))


def plan(*sequences: tuple[int, int]) -> StepPlan:
    """Makes a plan from each sequence's number of new tokens and of sampled tokens."""
    return StepPlan(0, [], [ScheduledSequence(slot, 9, *each, []) for slot, each in enumerate(sequences)])


@pytest.mark.parametrize(
    ("sequences", "is_cut"),
    [
        ([(1, 1)] * 32, False),
        ([(1, 1)] * 33, True),
        ([(4, 4)] * 9, True),  # with drafted tokens
        ([(512, 1)], False),
        ([(513, 1)], True),
        ([(1, 1)] * 40 + [(2, 0)], False),  # with a chunk of a prompt
        ([(1, 1)] * 40 + [(473, 0)], True),
    ],
)
def test_thresholds(sequences: list[tuple[int, int]], is_cut: bool) -> None:
    halves = StepHalves(DualBatchOptions(enable_dbo=True), TWO)
    assert halves.wants(plan(*sequences), is_divisible=True) == is_cut
    assert not halves.wants(plan(*sequences), is_divisible=False)
    assert not StepHalves(DualBatchOptions(), TWO).wants(plan(*sequences), is_divisible=True)


def test_halves_are_never_empty() -> None:
    halves = StepHalves(DualBatchOptions(True, 0, 0), TWO)
    assert not halves.wants(plan((1, 1)), is_divisible=True)
    assert halves.wants(plan((1, 1), (1, 1)), is_divisible=True)


def test_a_sequence_may_be_in_both_halves() -> None:
    device, dtype = torch.device("cpu"), torch.float32
    buffers = SlotBuffers(4, 32, 4, 1, device, dtype)
    buffers.token_ids.copy_(torch.arange(buffers.token_ids.numel()).view_as(buffers.token_ids))
    embedded = EmbeddedRows(torch.tensor([1, 4, 6]), torch.arange(6.0).view(3, 2))
    whole = buffers.rows(np.array([2, 0, 3]), np.array([5, 0, 7]), np.array([1, 5, 1]), embedded)
    cut = buffers.cut(replace(whole, received=torch.arange(7.0)[:, None]))
    assert cut.halves is not None
    first, second = cut.halves
    assert (first.slots, first.computed, first.lengths) == ([2, 0], [5, 0], [6, 3])
    assert (second.slots, second.computed, second.lengths) == ([0, 3], [3, 7], [5, 8])
    for name in ("token_ids", "positions", "received"):
        assert torch.cat([getattr(half.inputs, name) for half in cut.halves]).equal(getattr(cut.inputs, name))
    assert second.inputs.states.is_fresh.tolist() == [False, False]
    rows = [half.embedded.rows.tolist() for half in cut.halves if half.embedded]
    assert rows == [[1], [0, 2]]
    assert second.embedded is not None
    assert second.embedded.values.tolist() == [[2.0, 3.0], [4.0, 5.0]]
