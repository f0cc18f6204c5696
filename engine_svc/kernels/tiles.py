"""How many queries and keys a program of the attention kernels works on at a time: as many as shared memory holds.

It depends on the model alone, so that a sequence's result does not depend on its batch.
"""

from __future__ import annotations

import torch


def query_rows(head_dim: int) -> int:
    """Queries of a tile."""
    return 64 if head_dim <= 128 else 32 if head_dim <= 256 else 16


def key_rows(head_dim: int, dtype: torch.dtype) -> int:
    """Keys that a tile attends to at a time."""
    return (64 if head_dim <= 128 else 32 if head_dim <= 256 else 16) * 2 // max(2, dtype.itemsize)
