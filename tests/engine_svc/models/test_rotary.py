"""The table of rotary embeddings is computed in pieces."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine_svc.layers import rotary
from engine_svc.layers.rotary import rotary_table

PARAMETERS: list[dict[str, Any]] = [
    {"rope_type": "default"}, {"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "yarn", "factor": 4.0},
]  # fmt: skip


@pytest.mark.parametrize("parameters", PARAMETERS, ids=lambda each: each["rope_type"])
def test_rows_are_the_same_in_pieces(parameters: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the trained length, 30, ends within a piece."""
    given = parameters | {"rope_theta": 10000.0}, 16, 30, 80, torch.bfloat16
    whole = rotary_table(*given)
    assert whole.shape == (80, 2, 8) and not torch.equal(whole[29], whole[31])
    for rows in (7, 30, 79):
        monkeypatch.setattr(rotary, "_ROWS", rows)
        assert torch.equal(rotary_table(*given), whole)
