"""Operations on the streams of hyper-connections, each in all implementations."""

from __future__ import annotations

import pytest
import torch

from tests.conformance.test_ops import every, normal
from tests.support.ops import make_ops


@every
@pytest.mark.parametrize(("count", "iterations"), [(1, 1), (3, 5), (4, 20)])
def test_stream_weights(name: str, count: int, iterations: int) -> None:
    ops, _ = make_ops(name)
    scores, epsilon = 3 * normal(70, count * (2 + count), dtype=torch.float32), 1e-3
    before, added, kept = scores.double().split((count, count, count * count), dim=1)
    weights = kept.unflatten(1, (count, count)).softmax(2) + epsilon
    for dimension in [1, *(2, 1) * (iterations - 1)]:
        weights = weights / (weights.sum(dimension, keepdim=True) + epsilon)
    expected = torch.cat((before.sigmoid() + epsilon, 2 * added.sigmoid(), weights.flatten(1)), dim=1)
    torch.testing.assert_close(
        ops.stream_weights(scores, count, iterations, epsilon).double(), expected, atol=1e-6, rtol=1e-5
    )
