"""Outputs of pooling models."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pooled:
    """Output for one input."""

    data: bytes  # float32, little-endian, row by row
    shape: tuple[int, ...]  # (values,), or (tokens, values)
    num_tokens: int


@dataclass(frozen=True, slots=True)
class PooledPart:
    """Outputs for inputs that one engine processed together, and its times in seconds."""

    outputs: list[Pooled]
    queue_seconds: float
    compute_seconds: float
