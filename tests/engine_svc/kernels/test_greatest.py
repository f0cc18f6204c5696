"""The kernels for the greatest token, against torch."""

from __future__ import annotations

import pytest
import torch

from engine_svc.kernels import greatest
from engine_svc.kernels.greatest import greatest_tokens


@pytest.mark.parametrize("size", [1, 64, 150, 1000])
def test_greatest_tokens(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Covers equal logits in one chunk and in several, and rows in which nothing can be sampled."""
    monkeypatch.setattr(greatest, "_CHUNK", 64)
    torch.manual_seed(size)
    logits = (torch.randn(9, size + 3) * 2).round()[:, :size]
    logits[1] = 0.0
    logits[2, size // 2] = float("nan")
    logits[3, size - 1] = float("inf")
    logits[4] = float("-inf")
    logits[5, : size // 2] = float("-inf")
    logits[6, size // 2] = 1e38
    token_ids, broken = greatest_tokens(logits)
    assert broken.tolist() == [False, False, True, True, True, False, False, False, False]
    first = [0 if bad else row.tolist().index(float(row.max())) for row, bad in zip(logits, broken, strict=True)]
    assert token_ids.tolist() == first
