"""The blocks of one sequence."""

from __future__ import annotations


class BlockTable:
    """Which blocks hold a sequence's keys and values, in order, and how its full blocks are named.

    Filled by KvCacheManager only. The hashes outlive a preemption: the tokens they name do not change.
    """

    __slots__ = (
        "adapter",
        "block_ids",
        "cache_salt",
        "content",
        "has_awaited",
        "hashes",
        "is_private",
        "num_findable",
        "num_released",
    )

    def __init__(
        self, cache_salt: str = "", hashes: list[bytes] | None = None, content: bytes = b"", adapter: str = ""
    ) -> None:
        # What the hashes begin with: see block_hash.root_hash.
        self.cache_salt = cache_salt
        self.content = content
        self.adapter = adapter
        # Of each group of layers, all of the same length; empty when nothing is held.
        self.block_ids: list[list[int]] = []
        self.hashes = hashes if hashes is not None else []  # of the first full blocks of its tokens
        self.has_awaited = False  # blocks from elsewhere; once is enough, so that its sequence gets on
        self.is_private = False  # what it holds is never told to the prefix cache
        self.num_findable = 0  # how many of the first blocks the prefix cache has been told of
        # Of each group: how many of the first ones are not held any more: the window has passed them.
        self.num_released: list[int] = []

    def __len__(self) -> int:
        return len(self.block_ids[0]) if self.block_ids else 0

    def num_held(self, group: int) -> int:
        """How many blocks of a group it has a reference to."""
        return len(self.block_ids[group]) - self.num_released[group] if self.block_ids else 0

    @property
    def held(self) -> list[int]:
        """The blocks that this table has a reference to, those of a sequence's start first."""
        return [
            block
            for block_ids, released in zip(self.block_ids, self.num_released, strict=True)
            for block in block_ids[released:]
        ]
