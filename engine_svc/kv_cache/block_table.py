"""The blocks of one sequence."""

from __future__ import annotations


class BlockTable:
    """Which blocks hold a sequence's keys and values, in order, and how its full blocks are named.

    Filled by KvCacheManager only. The hashes outlive a preemption: the tokens they name do not change.
    """

    __slots__ = ("block_ids", "cache_salt", "hashes", "num_findable", "num_released")

    def __init__(self, cache_salt: str = "", hashes: list[bytes] | None = None) -> None:
        self.cache_salt = cache_salt
        self.block_ids: list[int] = []
        self.hashes = hashes if hashes is not None else []  # of the first full blocks of its tokens
        self.num_findable = 0  # how many of block_ids the prefix cache has been told of
        self.num_released = 0  # how many of the first ones are not held any more: the window has passed them

    @property
    def held(self) -> list[int]:
        """The blocks that this table has a reference to."""
        return self.block_ids[self.num_released :]
