"""Index of full blocks by the hash of their contents and of everything before them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import takewhile

from engine_svc.kv_cache.events import BlockContent, TierRecorder


class PrefixCache:
    """Finds the blocks that hold a prefix. Reports additions and removals to the recorder, if it has one.

    A block has at most one hash and a hash at most one block: a second block with the same contents is not findable.
    """

    def __init__(self, recorder: TierRecorder | None) -> None:
        self._recorder = recorder
        self._blocks: dict[bytes, int] = {}
        self._hashes: dict[int, bytes] = {}  # by block

    def __len__(self) -> int:
        return len(self._blocks)

    def __contains__(self, block: int) -> bool:
        return block in self._hashes

    def get(self, block_hash: bytes) -> int | None:
        """The block with this hash; None if it is not cached."""
        return self._blocks.get(block_hash)

    def num_leading(self, hashes: Iterable[bytes]) -> int:
        """How many of the first of `hashes`, without a gap, are cached."""
        return sum(1 for _ in takewhile(self._blocks.__contains__, hashes))

    def store(self, block: int, block_hash: bytes, parent: bytes, content: BlockContent | None = None) -> None:
        """Makes the block findable, unless another block with the same contents already is.

        Args:
            parent: hash of the block before it; empty for the first of a sequence.
            content: see TierRecorder.stored.
        """
        if block_hash in self._blocks:
            return
        self._blocks[block_hash] = block
        self._hashes[block] = block_hash
        if self._recorder:
            self._recorder.stored(block_hash, parent, content)

    def forget(self, block: int) -> bytes | None:
        """Removes the block from the index, if it is there, because its contents are about to be overwritten.

        Returns:
            The hash by which it could be found; None if it could not.
        """
        block_hash = self._hashes.pop(block, None)
        if block_hash is None:
            return None
        del self._blocks[block_hash]
        if self._recorder:
            self._recorder.removed(block_hash)
        return block_hash

    def clear(self) -> None:
        """Forgets all blocks. The recorder is not told: the caller that clears all tiers does that."""
        self._blocks.clear()
        self._hashes.clear()

    def hashes(self) -> list[bytes]:
        """The hashes of all findable blocks."""
        return list(self._blocks)

    def check(self) -> None:
        """Verifies that the two indexes, by hash and by block, agree.

        Raises:
            RuntimeError: they do not.
        """
        if {block_hash: block for block, block_hash in self._hashes.items()} != self._blocks:
            raise RuntimeError("the prefix cache's two indexes differ")
