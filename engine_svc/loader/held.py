"""Tensors of a checkpoint that are in memory, or that the system pages in from a file as they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class HeldTensor:
    """As a TensorSlice."""

    tensor: torch.Tensor

    def get_shape(self) -> Sequence[int]:
        """See TensorSlice."""
        return tuple(self.tensor.shape)

    def __getitem__(self, index: Any) -> torch.Tensor:
        """See TensorSlice."""
        return self.tensor[index]
