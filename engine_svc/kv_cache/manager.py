"""The KV cache as the scheduler sees it: look a prefix up, allocate, make findable, fork, free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine_svc.kv_cache.block_pool import BlockPool
from engine_svc.kv_cache.block_table import BlockTable
from engine_svc.kv_cache.connectors.host_tier import HostTier
from engine_svc.kv_cache.events import CacheContents, Changes, EventRecorder, Tier
from engine_svc.kv_cache.facts import KvCacheFacts
from engine_svc.kv_cache.prefix_cache import PrefixCache
from engine_svc.layer_groups import most_blocks
from quire.block_hash import extend_hashes
from quire.options.cache import CacheOptions


@dataclass(frozen=True)
class Prefix:
    """Blocks that a sequence can begin with: first those on the device, then those that must be copied to it."""

    device: list[list[int]] = field(default_factory=list)  # of each group
    # Of each group: the first block that its window sees. Those before it are not held, whatever stands for them.
    first: list[int] = field(default_factory=list)
    host: list[bytes] = field(default_factory=list)  # by hash

    def __len__(self) -> int:
        return (len(self.device[0]) if self.device else 0) + len(self.host)

    def num_held(self, group: int) -> int:
        """How many blocks of a group on the device it refers to."""
        return len(self.device[group]) - self.first[group] if self.device else 0

    @property
    def held(self) -> list[int]:
        """The blocks on the device that a table beginning with this prefix refers to."""
        return [block for blocks, first in zip(self.device, self.first, strict=True) for block in blocks[first:]]


class KvCacheManager:
    """Owner of all blocks of a worker.

    A block is *used* (in some sequence's table), *cached* (in none, but findable by its hash) or *free*. Cached blocks
    count as free room: the one unused for longest is overwritten first. Only full, computed blocks are shared, so
    nothing is ever written to a block that two sequences hold.
    """

    def __init__(self, facts: KvCacheFacts, options: CacheOptions) -> None:
        """
        Events tell of the blocks of the first group of layers only: what the windows of the others see of a prefix may
        be gone sooner, and an index then promises too much. A second tier is for a single group without a window only.
        """
        self.block_size = facts.block_size
        self._caching = options.enable_prefix_caching
        self._windows = facts.windows
        self._has_windows = any(window is not None for window in self._windows)
        self._step_tokens = facts.max_num_batched_tokens
        self._pool = BlockPool(facts.num_blocks)
        self._recorder = EventRecorder()
        self._caches = [PrefixCache(None if group else self._recorder.device) for group in range(len(self._windows))]
        self._host = HostTier(facts.num_host_blocks, self._recorder.host)

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return self._pool.num_blocks

    @property
    def num_used_blocks(self) -> int:
        """Blocks that live sequences hold."""
        return self._pool.num_used

    @property
    def num_host_blocks(self) -> int:
        """Blocks of the host tier."""
        return self._host.num_blocks

    @property
    def num_used_host_blocks(self) -> int:
        """Those of them that keep something."""
        return len(self._host)

    def lookup(self, table: BlockTable, token_ids: Sequence[int]) -> Prefix:
        """The cached blocks of the sequence's longest known prefix, for `allocate`.

        The last token is never among them: something must be computed to sample from.
        """
        if not self._caching:
            return Prefix()
        extend_hashes(table.hashes, token_ids, self.block_size, table.cache_salt)
        wanted = table.hashes[: (len(token_ids) - 1) // self.block_size]
        count = self._longest(wanted)
        if not count and not self._host.num_blocks:
            return Prefix()
        first = [self._first_seen(window, count) for window in self._windows]
        device = [
            [0] * start + cache.find(wanted[start:count]) for start, cache in zip(first, self._caches, strict=True)
        ]
        return Prefix(device, first, self._host.find(wanted[count:]))

    def _longest(self, wanted: list[bytes]) -> int:
        """The greatest number of first blocks of which every group has those that its window still sees."""
        count = len(wanted)
        for window, cache in zip(self._windows, self._caches, strict=True):
            if window is None:
                count = len(cache.find(wanted[:count]))
        limited = [(w, cache) for w, cache in zip(self._windows, self._caches, strict=True) if w is not None]
        runs = [cache.runs(wanted[:count]) for _, cache in limited]
        while count and any(
            run[count - 1] < count - self._first_seen(window, count)
            for run, (window, _) in zip(runs, limited, strict=True)
        ):
            count -= 1
        return count

    def _first_seen(self, window: int | None, num_blocks: int) -> int:
        """The first block that a token behind so many blocks sees."""
        return 0 if window is None else max(0, num_blocks * self.block_size - window + 1) // self.block_size

    def allocate(self, table: BlockTable, num_tokens: int, found: Prefix | None = None) -> list[list[int]] | None:
        """Extends the table until it holds `num_tokens`.

        Args:
            found: of `lookup`, which an empty table begins with.

        Returns:
            The blocks added to each group, those found not among them; empty when there are none. None (and nothing
            changed) when there is not enough room.
        """
        if not found and table.block_ids and num_tokens <= len(table.block_ids[0]) * self.block_size:
            return []  # as in most steps of most sequences
        found = found or Prefix()
        missing = -(-num_tokens // self.block_size) - len(table) - len(found)
        if missing * len(self._windows) + self._cost(found) > self._pool.num_free:
            return None
        if not table.block_ids:
            table.block_ids = [[] for _ in self._windows]
            table.num_released = [0] * len(self._windows)
        if found:
            self._begin(table, found)
        added = [[self._take() for _ in range(missing)] for _ in self._windows]
        for block_ids, blocks in zip(table.block_ids, added, strict=True):
            block_ids.extend(blocks)
        return added if missing > 0 else []

    def can_extend(self, table: BlockTable, num_tokens: int) -> bool:
        """Whether `allocate` would extend the table to `num_tokens` now."""
        missing = -(-num_tokens // self.block_size) - len(table)
        return missing * len(self._windows) <= self._pool.num_free

    def has_room(self, table: BlockTable, num_tokens: int, found: Prefix | None = None) -> bool:
        """Whether a sequence can get to `num_tokens`, if others take nothing meanwhile."""
        found = found or Prefix()
        needed = -(-num_tokens // self.block_size) - len(table) - len(found)
        missing = 0
        for group, window in enumerate(self._windows):
            most = most_blocks(window, num_tokens, self.block_size, self._step_tokens)
            missing += min(needed, max(0, most - table.num_held(group) - found.num_held(group)))
        return missing + self._cost(found) <= self._pool.num_free

    def _cost(self, found: Prefix) -> int:
        """Free blocks that the prefix takes: the cached ones that nobody holds, and those that come from the host."""
        return len(found.host) + sum(1 for block in found.held if not self._pool.references(block))

    def _begin(self, table: BlockTable, found: Prefix) -> None:
        for block in found.held:
            self._pool.share(block)
        for block_ids, blocks in zip(table.block_ids, found.device, strict=True):
            block_ids.extend(blocks)
        table.num_released = list(found.first)
        self._restore(table, found.host)
        table.num_findable += len(found)

    def book(self, table: BlockTable, token_ids: Sequence[int], num_computed_tokens: int) -> None:
        """After a step: blocks that became full can be found by others, and those that a window has passed are free."""
        if self._caching and num_computed_tokens >= (table.num_findable + 1) * self.block_size:
            self.make_findable(table, token_ids, num_computed_tokens)
        if self._has_windows:
            self.release_passed(table, num_computed_tokens)

    def make_findable(self, table: BlockTable, token_ids: Sequence[int], num_computed_tokens: int) -> None:
        """Puts the table's blocks that are full and computed by now into the prefix cache."""
        full = num_computed_tokens // self.block_size
        if not self._caching or full <= table.num_findable:
            return
        if len(table.hashes) < full:
            extend_hashes(table.hashes, token_ids, self.block_size, table.cache_salt)
        for index in range(table.num_findable, full):
            parent = table.hashes[index - 1] if index else b""
            for cache, block_ids in zip(self._caches, table.block_ids, strict=True):
                cache.store(block_ids[index], table.hashes[index], parent)
        table.num_findable = full

    def release_passed(self, table: BlockTable, num_computed_tokens: int) -> None:
        """Gives back the blocks that no further token of the sequence will see, nor a fork of it made now."""
        for group, window in enumerate(self._windows):
            if window is None:
                continue
            passed = (num_computed_tokens - window + 1) // self.block_size - 1  # a fork begins a block earlier
            for block in table.block_ids[group][table.num_released[group] : max(0, passed)]:
                self._pool.release(block, keep=block in self._caches[group])
            table.num_released[group] = max(table.num_released[group], passed)

    def fork(self, table: BlockTable, num_tokens: int) -> BlockTable:
        """A second table that shares the first one's full blocks among its first `num_tokens` computed tokens.

        The last of these tokens stays to be computed by the new sequence, so that it has logits to sample from.
        """
        shared = (num_tokens - 1) // self.block_size
        child = BlockTable(table.cache_salt, table.hashes[: num_tokens // self.block_size])
        if shared:
            child.block_ids = [block_ids[:shared] for block_ids in table.block_ids]
            child.num_released = [min(released, shared) for released in table.num_released]
        child.num_findable = min(table.num_findable, shared)
        for block in child.held:
            self._pool.share(block)
        return child

    def free(self, table: BlockTable) -> None:
        """Gives all the table's blocks back. Those at a sequence's end are overwritten before those at its start."""
        for cache, block_ids, released in zip(self._caches, table.block_ids, table.num_released, strict=False):
            for block in reversed(block_ids[released:]):
                self._pool.release(block, keep=block in cache)
        table.block_ids, table.num_released, table.num_findable = [], [], 0

    def clear(self) -> None:
        """Makes all blocks unfindable; sequences keep theirs."""
        if self._caching:
            for cache in self._caches:
                cache.clear()
            self._host.clear()
            self._recorder.cleared()

    def take_copies(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """What the next step copies between device and host before it computes: see HostTier.take_copies."""
        return self._host.take_copies()

    def take_changes(self) -> Changes | None:
        """Changes of the prefix cache since the last call; None if there are none."""
        return self._recorder.take()

    def contents(self) -> CacheContents:
        """All that is findable now."""
        hashes = {Tier.DEVICE: self._caches[0].hashes(), Tier.HOST: self._host.hashes()}
        return CacheContents(hashes, self._recorder.digests())

    def check(self, tables: Sequence[BlockTable]) -> None:
        """Proves that no block is lost: free + cached + used is all there are, and `tables` hold just those used.

        Args:
            tables: those of all live sequences.

        Raises:
            RuntimeError: a block leaked, was freed twice, or is held by nobody in `tables`.
        """
        self._pool.check()
        for cache in self._caches:
            cache.check()
        self._host.check()
        held: dict[int, int] = {}
        for table in tables:
            for block in table.held:
                held[block] = held.get(block, 0) + 1
        wrong = [block for block in range(self.num_blocks) if self._pool.references(block) != held.get(block, 0)]
        if wrong:
            raise RuntimeError(f"blocks {wrong[:10]} have another number of references than holders")

    def _restore(self, table: BlockTable, hashes: list[bytes]) -> None:
        """Appends blocks that are copied in from the host."""
        self._host.pin(hashes)
        for block_hash in hashes:
            block = self._take()
            self._host.restore(block_hash, block)
            parent = table.hashes[len(table) - 1] if len(table) else b""
            self._caches[0].store(block, block_hash, parent)
            table.block_ids[0].append(block)

    def _take(self) -> int:
        block = self._pool.take()
        for cache in self._caches:
            block_hash = cache.forget(block)
            if block_hash is not None:
                if self._host.num_blocks:
                    self._host.keep(block_hash, block)
                break
        return block
