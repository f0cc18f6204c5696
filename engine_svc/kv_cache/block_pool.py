"""Reference-counted blocks, with the free ones in the order in which they will be taken."""

from __future__ import annotations


class BlockPool:
    """Blocks 0 … num_blocks - 1, each *used* (references > 0) or *free*.

    The free ones form a doubly linked ring through two lists, so that taking the first, appending at either end and
    unlinking from the middle cost O(1) and allocate nothing. Index num_blocks is the ring's anchor, not a block.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks
        self._references = [0] * num_blocks
        self._anchor = num_blocks
        self._next: list[int] = [*range(1, num_blocks + 1), 0]
        self._previous: list[int] = [num_blocks, *range(num_blocks)]

    @property
    def num_used(self) -> int:
        """Blocks with at least one reference."""
        return self.num_blocks - self.num_free

    @property
    def next_free(self) -> int:
        """The free block that will be taken first; no block's number if there is none."""
        return self._next[self._anchor]

    def references(self, block: int) -> int:
        """Number of references to the block."""
        return self._references[block]

    def take(self) -> int:
        """Takes the first free block and gives it one reference. The caller has checked `num_free`."""
        block = self._next[self._anchor]
        self._unlink(block)
        self._references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Adds a reference; a free block becomes used."""
        if self._references[block] == 0:
            self._unlink(block)
        self._references[block] += 1

    def release(self, block: int, keep: bool) -> None:
        """Drops a reference. A block without references becomes free.

        Args:
            keep: the contents may be wanted again: a freed block is then taken last instead of first.

        Raises:
            RuntimeError: the block has no reference.
        """
        if self._references[block] <= 0:
            raise RuntimeError(f"block {block} is released more often than it was taken")
        self._references[block] -= 1
        if self._references[block] == 0:
            self._link_before(block, self._anchor if keep else self._next[self._anchor])

    def free_blocks(self) -> list[int]:
        """The free blocks, in the order in which they will be taken."""
        blocks: list[int] = []
        block = self._next[self._anchor]
        while block != self._anchor and len(blocks) <= self.num_blocks:
            blocks.append(block)
            block = self._next[block]
        return blocks

    def check(self) -> None:
        """Verifies that every block is either used or on the free ring exactly once.

        Raises:
            RuntimeError: a block is lost or counted twice.
        """
        free = self.free_blocks()
        used = {block for block, count in enumerate(self._references) if count > 0}
        if len(free) != self.num_free or set(free) | used != set(range(self.num_blocks)) or used & set(free):
            raise RuntimeError(f"{len(free)} free and {len(used)} used blocks do not make {self.num_blocks}")

    def _unlink(self, block: int) -> None:
        before, after = self._previous[block], self._next[block]
        self._next[before] = after
        self._previous[after] = before
        self.num_free -= 1

    def _link_before(self, block: int, after: int) -> None:
        before = self._previous[after]
        self._next[before] = self._previous[after] = block
        self._previous[block], self._next[block] = before, after
        self.num_free += 1
