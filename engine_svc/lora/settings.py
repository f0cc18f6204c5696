"""How many adapters a rank holds, and how."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class AdapterSettings:
    """The same on every rank."""

    max_adapters: int  # on the device at the same time
    max_rank: int
    dtype: torch.dtype  # of their matrices
    base_dtype: torch.dtype  # of the model
    fully_sharded: bool = False  # both halves of a product are divided among the ranks, not one
    is_part: bool = False  # the ranks of other stages have other layers of the model, and what adapters change of those
