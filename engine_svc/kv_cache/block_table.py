"""The blocks of one sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from engine_svc.kv_cache.prefix import Hits
from quire.block_hash import Content


class AwaitedState(NamedTuple):
    """A state of recurrent layers that a step under way saves: see snapshots.py."""

    num_tokens: int  # computed tokens that it covers
    place: int
    replaces_last: bool  # the state that the sequence saved before may be overwritten


class Offer(NamedTuple):
    """The worker that keeps the blocks of a sequence's first tokens."""

    source: str = ""  # its address; empty if there is none
    num_tokens: int = 0


class BlockTable:
    """The blocks that hold a sequence's keys and values, in order, and the hashes of its full blocks.

    Only KvCacheManager changes it. The hashes survive a preemption, because the tokens do not change.
    """

    __slots__ = (
        "adapter",
        "block_ids",
        "branch",
        "cache_salt",
        "contents",
        "has_awaited",
        "hashes",
        "hits",
        "is_private",
        "last_snapshot",
        "num_findable",
        "num_released",
        "num_saved",
        "offer",
        "snapshots",
        "state",
    )

    def __init__(
        self,
        cache_salt: str = "",
        hashes: list[bytes] | None = None,
        contents: Sequence[Content] = (),
        adapter: str = "",
        offer: Offer = Offer(),
    ) -> None:
        # Inputs of the hashes: see block_hash.extend_hashes.
        self.cache_salt = cache_salt
        self.contents = contents
        self.adapter = adapter
        self.offer = offer
        # One list per group of layers, all of the same length; empty when no blocks are held.
        self.block_ids: list[list[int]] = []
        self.hashes = hashes if hashes is not None else []  # of the sequence's first full blocks
        self.has_awaited = False  # has waited for a connector's blocks; only once, so that the sequence progresses
        self.hits = Hits()  # once awaited blocks have arrived: where those that it begins with come from
        self.num_saved = 0  # how many of its first blocks a connector has saved, or will not save
        self.is_private = False  # its blocks are never put into the prefix cache
        self.num_findable = 0  # how many of its first blocks are in the prefix cache
        # For each group, how many of its first blocks are no longer held because the sliding window has passed them.
        self.num_released: list[int] = []
        # States of recurrent layers: see snapshots.py.
        self.branch = 0  # cached blocks end here, but no state is saved: other prompts may have the same beginning
        self.snapshots: list[AwaitedState] = []
        self.state: int | None = None  # number of the saved ones that it begins with, until it does: see DeviceTier
        self.last_snapshot = b""  # hash of the prefix whose state it saved last

    def __len__(self) -> int:
        return len(self.block_ids[0]) if self.block_ids else 0

    def num_held(self, group: int) -> int:
        """Number of blocks of a group that this table has a reference to."""
        return len(self.block_ids[group]) - self.num_released[group] if self.block_ids else 0

    @property
    def held(self) -> list[int]:
        """The blocks that this table has a reference to, group by group and in order within a group."""
        return [
            block
            for block_ids, released in zip(self.block_ids, self.num_released, strict=True)
            for block in block_ids[released:]
        ]
