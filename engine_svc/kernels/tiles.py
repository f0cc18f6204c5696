"""How many queries and keys a program of the attention kernels works on at a time: as many as shared memory holds.

It depends on the model alone, so that a sequence's result does not depend on its batch.
"""

from __future__ import annotations

import torch
import triton


def query_rows(head_dim: int) -> int:
    """Queries of a tile."""
    return 64 if head_dim <= 128 else 32 if head_dim <= 256 else 16


def key_rows(head_dim: int, dtype: torch.dtype) -> int:
    """Keys that a tile attends to at a time."""
    return (64 if head_dim <= 128 else 32 if head_dim <= 256 else 16) * 2 // max(2, dtype.itemsize)


def head_rows(group: int, head_dim: int, as_queries: bool) -> int:
    """Query heads of a key-value head that decode takes at a time.

    Args:
        as_queries: as many as prefill has queries, so that the products of both have one shape.
    """
    most = query_rows(head_dim)
    return most if as_queries else max(16, min(most, triton.next_power_of_2(group)))
