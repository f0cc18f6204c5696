"""The buffers that hold each slot's tokens and blocks."""

from __future__ import annotations

import pytest
import torch

from engine_svc.plan import NewSequence, SamplingPlan
from engine_svc.runner.batch import SlotBuffers
from quire.sampling import SamplingParameters

GREEDY = SamplingPlan(SamplingParameters(temperature=0.0))


def test_sequences_are_added_together() -> None:
    """Each sequence goes to its own slot and no further; one that is too long would run into the next slot."""
    buffers = SlotBuffers(3, 7, 4, 1, torch.device("cpu"), torch.float32)
    buffers.token_ids.fill_(-1)
    buffers.add([])
    first = NewSequence(2, [5, 6, 7], 3, 0, [[1]], GREEDY)
    second = NewSequence(0, list(range(8)), 8, 0, [[2, 3]], GREEDY)
    buffers.add([first, second])
    assert buffers.token_ids.tolist() == [list(range(8)), [-1] * 8, [5, 6, 7, -1, -1, -1, -1, -1]]
    assert [buffers.capacity(slot) for slot in range(3)] == [8, 0, 4]
    assert buffers.blocks(0, 0, 2).tolist() == [2, 3]
    with pytest.raises(ValueError, match="9 tokens does not fit into a slot of 8"):
        buffers.add([NewSequence(1, [0] * 9, 9, 0, [[4, 5]], GREEDY)])
