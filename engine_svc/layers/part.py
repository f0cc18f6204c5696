"""What a rank holds of a matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """Which features of a matrix in the checkpoint are this rank's."""

    first: int
    count: int
    total: int


@dataclass(frozen=True)
class Layout:
    """How checkpoints that hold several matrices as one have their outputs."""

    order: tuple[str, ...] = ()  # of the matrices, where it is not that of their names
    # Each has so manieth part of every matrix, in that order: what goes with a head, say.
    groups: int = 1

    def above(self, outputs: Mapping[str, Part]) -> dict[str, int]:
        """How many outputs of all groups are of matrices before each of these."""
        found, above = {}, 0
        for name in self.order or outputs:
            found[name] = above
            above += outputs[name].total
        return found

    def pieces(self, part: Part, above: int, total: int) -> Iterator[tuple[int, int]]:
        """Where a rank's outputs of one of the matrices are: the first of them that stand together, and how many.

        Args:
            above: outputs of matrices before it.
            total: outputs of all of them.

        Raises:
            ValueError: the matrix cannot be divided so.
        """
        if part.total % self.groups or above % self.groups or total % self.groups:
            raise ValueError(f"{part.total} outputs cannot be divided by {self.groups} groups")
        size, end = part.total // self.groups, part.first + part.count
        for group in range(part.first // size, -(-end // size)):
            first, last = max(part.first, group * size), min(end, (group + 1) * size)
            yield (group * total + above) // self.groups + first - group * size, last - first
