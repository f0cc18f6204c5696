"""What comes of a pooling model."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pooled:
    """What has come of one input."""

    data: bytes  # float32, little-endian, row by row
    shape: tuple[int, ...]  # (values,), or (tokens, values)
    num_tokens: int


@dataclass(frozen=True, slots=True)
class PooledPart:
    """What has come of some inputs that one engine had together, and its times in seconds."""

    outputs: list[Pooled]
    queue_seconds: float
    compute_seconds: float
