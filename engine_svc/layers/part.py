"""What a rank holds of a matrix."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Which features of a matrix in the checkpoint are this rank's."""

    first: int
    count: int
    total: int
