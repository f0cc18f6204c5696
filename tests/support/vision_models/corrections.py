"""Where Transformers computes something else than the models' own code, by which they were trained."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from transformers.models.hunyuan_vl.modeling_hunyuan_vl import HunYuanVLRotaryEmbedding


@contextlib.contextmanager
def corrected() -> Iterator[None]:
    """Computes as the models' own code does.

    HunYuan's four positions share the frequencies of half a head, and both halves are rotated alike: in its own code,
    and in vLLM's. Transformers 5.23 has them share the whole head, so that the halves are rotated by other positions.
    """
    with mock.patch.object(HunYuanVLRotaryEmbedding, "recomposition_frequencies", _of_half_heads):
        yield


def _of_half_heads(self: Any, values: torch.Tensor) -> torch.Tensor:
    """[positions, batch, tokens, head_dim / 2] → [batch, tokens, head_dim]"""
    parts = values.split(self.mrope_section, dim=-1)
    half = torch.cat([part[position] for position, part in enumerate(parts)], dim=-1)
    return torch.cat((half, half), dim=-1)
