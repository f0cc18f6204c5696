"""The cached blocks that a sequence can begin with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from engine_svc.kv_cache.block_name import STATES, BlockName
from engine_svc.kv_cache.events import BlockContent

ABSENT = -1  # in place of a block that a connector loads


class Hits(NamedTuple):
    """Blocks of a prefix, by the nearest place with which it is that long."""

    device: int = 0
    memory: int = 0  # the worker's own host memory
    elsewhere: int = 0

    @property
    def total(self) -> int:
        """Length of the prefix."""
        return sum(self)


@dataclass(frozen=True)
class Prefix:
    """Cached blocks on the device, and what a connector loads to complete them.

    Attributes:
        block_ids: one list per group of layers, all of the same length.
        first: for each group, the index of the first block that its window sees. Blocks before it are placeholders.
        hits: where its blocks come from.
        wait_seconds: None means that blocks are loaded before the step computes. Otherwise the sequence waits for
            them, at most this long, and computes itself what has not arrived by then.
        contents: what the first group's blocks that are loaded hold, by their index, if the events tell it.
        state: number of the saved states of recurrent layers after these blocks, see DeviceTier; ABSENT if a connector
            loads them, and None if the model has no such layers.
    """

    block_ids: list[list[int]] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    hits: Hits = Hits()
    wait_seconds: float | None = None
    contents: Mapping[int, BlockContent] = field(default_factory=dict)
    state: int | None = None

    def __len__(self) -> int:
        return len(self.block_ids[0]) if self.block_ids else 0

    @property
    def is_awaited(self) -> bool:
        """Whether the sequence waits for blocks."""
        return self.wait_seconds is not None

    @property
    def blocks(self) -> list[int]:
        """The blocks on the device that a table beginning with this prefix refers to."""
        return [
            block
            for block_ids, first in zip(self.block_ids, self.first, strict=True)
            for block in block_ids[first:]
            if block != ABSENT
        ]

    @property
    def held(self) -> list[int]:
        """The numbers of these blocks, and of the states on the device."""
        return self.blocks if self.state is None or self.state == ABSENT else [*self.blocks, self.state]

    def num_held(self, group: int) -> int:
        """Number of blocks of a group that a table beginning with this prefix refers to, once they are loaded."""
        return len(self.block_ids[group]) - self.first[group] if self.block_ids else 0

    def absent(self) -> Iterator[tuple[int, int]]:
        """The index and the group of each block that is loaded, in the order of their indices; last the states."""
        if len(self) > self.hits.device:
            for index in range(len(self)):
                for group, block_ids in enumerate(self.block_ids):
                    if block_ids[index] == ABSENT:
                        yield index, group
            if self.state == ABSENT:
                yield len(self) - 1, STATES

    def names(self, hashes: Sequence[bytes]) -> list[BlockName]:
        """The names of what is loaded, given the hashes of the prefix."""
        return [BlockName(hashes[index], group) for index, group in self.absent()]
