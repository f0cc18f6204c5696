"""Finds how much of a prompt is cached, on the device or elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from engine_svc.kv_cache.block_name import BlockName
from engine_svc.kv_cache.connectors.base import KvConnector
from engine_svc.kv_cache.prefix import ABSENT, Hits, Prefix
from engine_svc.kv_cache.prefix_cache import PrefixCache

# Where a window lacks a block, a shorter prefix is tried: at most so often if a connector is asked, which may have to
# look each block up in a file system.
_MOST_GAPS = 1000


class PrefixSearch:
    """Searches the caches of all groups of layers, and connectors.

    Of a prefix, layers with full attention need all blocks, and layers with a window those that the next token sees.
    """

    def __init__(self, windows: Sequence[int | None], block_size: int, caches: Sequence[PrefixCache]) -> None:
        """
        Args:
            windows: of each group of layers.
            caches: of each group of layers.
        """
        self._block_size = block_size
        self._windows = windows
        self._caches = caches
        self._whole = [group for group, window in enumerate(windows) if window is None]
        self._limited = [group for group, window in enumerate(windows) if window is not None]

    def longest(self, hashes: Sequence[bytes], elsewhere: KvConnector | None = None) -> int:
        """The length of the longest cached prefix, in blocks.

        Args:
            hashes: of the prompt's blocks.
            elsewhere: a connector whose blocks count as cached, too.
        """
        count = len(hashes)
        for group in self._whole:
            count = self._leading(group, hashes[:count], elsewhere)
        return self._seen(hashes, count, elsewhere) if self._limited else count

    def prefix(self, hashes: Sequence[bytes], hits: Hits, state: int | None, connector: KvConnector) -> Prefix:
        """A prefix, each block of which is on the device if possible.

        Args:
            hashes: of the prompt's blocks, at least as many as there are hits.
            hits, state: see Prefix.
            connector: has the rest.
        """
        hashes = hashes[: hits.total]
        first = [self._first_seen(group, len(hashes)) for group in range(len(self._windows))]
        block_ids = [
            [0] * start + [ABSENT if (block := cache.get(each)) is None else block for each in hashes[start:]]
            for start, cache in zip(first, self._caches, strict=True)
        ]
        found = Prefix(block_ids, first, hits, state=state)
        absent = found.names(hashes)
        return replace(found, wait_seconds=connector.wait_seconds(absent)) if absent else found

    def _leading(self, group: int, hashes: Sequence[bytes], elsewhere: KvConnector | None) -> int:
        """How many of the first blocks are cached, without a gap."""
        count = self._caches[group].num_leading(hashes)
        while elsewhere is not None and count < len(hashes):
            loaded = elsewhere.num_leading(hashes[count:], group)
            if not loaded:
                break
            count += loaded
            count += self._caches[group].num_leading(hashes[count:])
        return count

    def _seen(self, hashes: Sequence[bytes], count: int, elsewhere: KvConnector | None) -> int:
        """The longest prefix, of at most `count` blocks, whose last blocks are cached for all groups with a window."""
        lows = dict.fromkeys(self._limited, count)  # the blocks from here to `count` are cached
        for _ in range(count + 1 if elsewhere is None else _MOST_GAPS):
            for group in self._limited:
                low, first = min(lows[group], count), self._first_seen(group, count)
                while low > first and self._has(hashes[low - 1], group, elsewhere):
                    low -= 1
                lows[group] = low
                if low > first:  # the window lacks the block before: no prefix that is longer will do
                    count = low - 1
                    break
            else:
                return count
        return 0

    def _has(self, block_hash: bytes, group: int, elsewhere: KvConnector | None) -> bool:
        is_here = self._caches[group].get(block_hash) is not None
        return is_here or (elsewhere is not None and elsewhere.has(BlockName(block_hash, group)))

    def _first_seen(self, group: int, num_blocks: int) -> int:
        """Index of the first block that a token after `num_blocks` blocks sees."""
        window = self._windows[group]
        return 0 if window is None else max(0, num_blocks * self._block_size - window + 1) // self._block_size
