"""A rank's part of a matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """The range of a checkpoint matrix's features that this rank holds."""

    first: int
    count: int
    total: int


@dataclass(frozen=True)
class Layout:
    """The order of outputs in checkpoints that hold several matrices as one."""

    order: tuple[str, ...] = ()  # of the matrices, where it differs from that of their names
    # The outputs are in this many groups, each with an equal part of every matrix, such as the parts of one head.
    groups: int = 1

    def above(self, outputs: Mapping[str, Part]) -> dict[str, int]:
        """For each matrix, the number of outputs of the matrices before it, over all groups."""
        found, above = {}, 0
        for name in self.order or outputs:
            found[name] = above
            above += outputs[name].total
        return found

    def pieces(self, part: Part, above: int, total: int) -> Iterator[tuple[int, int]]:
        """Yields the first index and length of each contiguous run of a rank's outputs of one matrix.

        Args:
            above: outputs of the matrices before it.
            total: outputs of all matrices.

        Raises:
            ValueError: the matrix cannot be divided into the groups.
        """
        if part.total % self.groups or above % self.groups or total % self.groups:
            raise ValueError(f"{part.total} outputs cannot be divided by {self.groups} groups")
        size, end = part.total // self.groups, part.first + part.count
        for group in range(part.first // size, -(-end // size)):
            first, last = max(part.first, group * size), min(end, (group + 1) * size)
            yield (group * total + above) // self.groups + first - group * size, last - first
