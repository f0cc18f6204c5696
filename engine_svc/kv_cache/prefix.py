"""The cached blocks that a sequence can begin with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from engine_svc.kv_cache.block_name import BlockName
from engine_svc.kv_cache.block_table import BlockTable
from engine_svc.kv_cache.events import BlockContent
from engine_svc.kv_cache.prefix_cache import PrefixCache

ABSENT = -1  # in place of a block that a connector loads


@dataclass(frozen=True)
class Prefix:
    """Cached blocks on the device, and what a connector loads to complete them.

    Attributes:
        block_ids: one list per group of layers, all of the same length.
        first: for each group, the index of the first block that its window sees. Blocks before it are placeholders.
        num_on_device: how many blocks long the prefix would be without the connector.
        wait_seconds: None means that blocks are loaded before the step computes. Otherwise the sequence waits for
            them, at most this long, and computes itself what has not arrived by then.
        contents: what the first group's blocks that are loaded hold, by their index, if the events tell it.
        snapshot: place of the saved state of recurrent layers after these blocks; -1 if there are none.
    """

    block_ids: list[list[int]] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    num_on_device: int = 0
    wait_seconds: float | None = None
    contents: Mapping[int, BlockContent] = field(default_factory=dict)
    snapshot: int = -1

    def __len__(self) -> int:
        return len(self.block_ids[0]) if self.block_ids else 0

    @property
    def is_awaited(self) -> bool:
        """Whether the sequence waits for blocks."""
        return self.wait_seconds is not None

    @property
    def num_loaded(self) -> int:
        """How many blocks longer the connector makes the prefix."""
        return len(self) - self.num_on_device

    @property
    def held(self) -> list[int]:
        """The blocks on the device that a table beginning with this prefix refers to."""
        return [
            block
            for block_ids, first in zip(self.block_ids, self.first, strict=True)
            for block in block_ids[first:]
            if block != ABSENT
        ]

    def num_held(self, group: int) -> int:
        """Number of blocks of a group that a table beginning with this prefix refers to, once they are loaded."""
        return len(self.block_ids[group]) - self.first[group] if self.block_ids else 0

    def absent(self) -> Iterator[tuple[int, int]]:
        """The index and the group of each block that is loaded, in the order of their indices."""
        if self.num_loaded:
            for index in range(len(self)):
                for group, block_ids in enumerate(self.block_ids):
                    if block_ids[index] == ABSENT:
                        yield index, group

    def names(self, hashes: Sequence[bytes]) -> list[BlockName]:
        """The names of the blocks that are loaded, given the hashes of the prefix."""
        return [BlockName(hashes[index], group) for index, group in self.absent()]

    def publish(self, hashes: Sequence[bytes], loaded: Sequence[int], caches: Sequence[PrefixCache]) -> None:
        """Makes loaded blocks findable.

        Args:
            hashes: of the prefix.
            loaded: the first of the blocks that were absent.
            caches: of each group of layers.
        """
        for (index, group), block in zip(self.absent(), loaded, strict=False):
            parent, content = hashes[index - 1] if index else b"", self.contents.get(index)
            caches[group].store(block, hashes[index], parent, content)

    def give(self, table: BlockTable, loaded: Sequence[int]) -> None:
        """Begins an empty table with these blocks, to all of which it now refers.

        Args:
            loaded: blocks in place of those that were absent.
        """
        table.block_ids = [list(block_ids) for block_ids in self.block_ids]
        for (index, group), block in zip(self.absent(), loaded, strict=True):
            table.block_ids[group][index] = block
        table.num_released, table.num_findable = list(self.first), len(self)
