"""Parts of sequences on several ranks, and merging their attention."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_svc.attention.context import ContextPart, SharedContext, merge_parts
from engine_svc.parallel.group import ParallelGroup


@given(size=st.integers(1, 8), length=st.integers(0, 200))
def test_each_position_is_in_one_part_and_those_below_it_are_before_it(size: int, length: int) -> None:
    parts = [ContextPart(rank, size) for rank in range(size)]
    held = [part.positions(torch.arange(part.count(length))).tolist() for part in parts]
    assert sorted(itertools.chain(*held)) == list(range(length))
    assert max(map(len, held)) - min(map(len, held)) <= 1
    for part, positions in zip(parts, held, strict=True):
        assert [part.count(position) for position in positions] == list(range(len(positions)))


@given(
    size=st.integers(1, 6), keys=st.integers(1, 40), magnitude=st.sampled_from([0.0, 1.0, 30.0, 5000.0]),
    has_sinks=st.booleans(), seed=st.integers(0, 1000),
)  # fmt: skip
@settings(max_examples=40)
def test_parts_come_to_one_softmax(size: int, keys: int, magnitude: float, has_sinks: bool, seed: int) -> None:
    """Merged parts equal one softmax in float64, whatever the scores, even if some ranks have no keys."""
    source = torch.Generator().manual_seed(seed)
    scores = torch.randn(5, 3, keys, generator=source, dtype=torch.float64) * magnitude
    values = torch.randn(5, 3, keys, 4, generator=source, dtype=torch.float64)
    sinks = torch.randn(3, generator=source, dtype=torch.float64) * magnitude if has_sinks else None
    every = scores if sinks is None else torch.cat((scores, sinks[:, None].expand(5, 3, 1)), -1)
    expected = (every.softmax(-1)[..., :keys, None] * values).sum(-2)
    outputs, sums = [], []
    for rank in range(size):
        part = slice(rank, keys, size)
        outputs.append((scores[..., part].softmax(-1)[..., None] * values[..., part, :]).sum(-2))
        sums.append(scores[..., part].logsumexp(-1))
    found = merge_parts(torch.stack(outputs).float(), torch.stack(sums).float(), sinks)
    torch.testing.assert_close(found.double(), expected, atol=1e-5 * (1 + magnitude / 30), rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rank_alone_gets_back_what_it_has(dtype: torch.dtype) -> None:
    context, query = SharedContext(ParallelGroup()), torch.randn(3, 2, 16).to(dtype)
    assert context.gather(query).equal(query)
    assert context.merge(query, torch.randn(3, 2), None).equal(query)
