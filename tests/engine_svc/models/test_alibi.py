"""Slopes of linear biases (ALiBi) equal those of Transformers' models."""

from __future__ import annotations

import pytest
import torch
from transformers.models.bloom.modeling_bloom import _get_alibi_slopes
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from engine_svc.models.alibi import alibi_slopes


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 32, 71, 112])
def test_slopes(heads: int) -> None:
    found = torch.tensor(alibi_slopes(heads))
    torch.testing.assert_close(found, _get_alibi_slopes(heads, torch.device("cpu")))
    for most in (8, 4):
        lower = -build_mpt_alibi_tensor(heads, 2, most)[:, 0, 0]  # biases of keys one position away
        torch.testing.assert_close(torch.tensor(alibi_slopes(heads, most)), lower)
