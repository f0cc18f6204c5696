"""The KV cache as the scheduler sees it: look a prefix up, allocate, make findable, fork, free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine_svc.kv_cache.block_pool import BlockPool
from engine_svc.kv_cache.block_table import BlockTable
from engine_svc.kv_cache.events import EventRecorder, KvEvent
from engine_svc.kv_cache.host_tier import HostTier
from engine_svc.kv_cache.prefix_cache import PrefixCache
from quire.block_hash import extend_hashes


@dataclass(frozen=True)
class Prefix:
    """Blocks that a sequence can begin with: first those on the device, then those that must be copied to it."""

    device: list[int] = field(default_factory=list)
    host: list[bytes] = field(default_factory=list)  # by hash

    def __len__(self) -> int:
        return len(self.device) + len(self.host)


class KvCacheManager:
    """Owner of all blocks of a worker.

    A block is *used* (in some sequence's table), *cached* (in none, but findable by its hash) or *free*. Cached blocks
    count as free room: the one unused for longest is overwritten first. Only full, computed blocks are shared, so
    nothing is ever written to a block that two sequences hold.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = True,
        sliding_window: int | None = None,
        num_host_blocks: int = 0,
    ) -> None:
        """
        Args:
            num_host_blocks: of the second tier, in host memory.
            sliding_window: of all layers; None when any layer sees everything.
        """
        self.block_size = block_size
        self._caching = enable_prefix_caching
        self._window = sliding_window
        self._pool = BlockPool(num_blocks)
        self._recorder = EventRecorder()
        self._cache = PrefixCache(block_size, self._recorder)
        self._host = HostTier(num_host_blocks)

    @property
    def num_blocks(self) -> int:
        """Blocks in all."""
        return self._pool.num_blocks

    @property
    def num_used_blocks(self) -> int:
        """Blocks that live sequences hold."""
        return self._pool.num_used

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be allocated; those that are merely cached are among them."""
        return self._pool.num_free

    def lookup(self, table: BlockTable, token_ids: Sequence[int]) -> Prefix:
        """The cached blocks of the sequence's longest known prefix, for `allocate`.

        The last token is never among them: something must be computed to sample from.
        """
        if not self._caching:
            return Prefix()
        extend_hashes(table.hashes, token_ids, self.block_size, table.cache_salt)
        wanted = table.hashes[: (len(token_ids) - 1) // self.block_size]
        device = self._cache.find(wanted)
        return Prefix(device, self._host.find(wanted[len(device) :]))

    def allocate(self, table: BlockTable, num_tokens: int, found: Prefix | None = None) -> list[int] | None:
        """Extends the table until it holds `num_tokens`.

        Args:
            found: of `lookup`, which an empty table begins with.

        Returns:
            The blocks added, those found not among them; None (and nothing changed) when there is not enough room.
        """
        found = found or Prefix()
        missing = -(-num_tokens // self.block_size) - len(table.block_ids) - len(found)
        if missing <= 0 and not found:
            return []
        if not self.has_room(table, num_tokens, found):
            return None
        for block in found.device:
            self._pool.share(block)
        table.block_ids.extend(found.device)
        self._restore(table, found.host)
        table.num_findable += len(found)
        added = [self._take() for _ in range(missing)]
        table.block_ids.extend(added)
        return added

    def has_room(self, table: BlockTable, num_tokens: int, found: Prefix | None = None) -> bool:
        """Whether `allocate` with the same arguments would succeed now."""
        on_device = found.device if found else []
        missing = -(-num_tokens // self.block_size) - len(table.block_ids) - len(on_device)
        return missing + sum(1 for block in on_device if not self._pool.references(block)) <= self._pool.num_free

    def make_findable(self, table: BlockTable, token_ids: Sequence[int], num_computed_tokens: int) -> None:
        """Puts the table's blocks that are full and computed by now into the prefix cache."""
        full = num_computed_tokens // self.block_size
        if not self._caching or full <= table.num_findable:
            return
        if len(table.hashes) < full:
            extend_hashes(table.hashes, token_ids, self.block_size, table.cache_salt)
        for index in range(table.num_findable, full):
            parent = table.hashes[index - 1] if index else b""
            self._cache.store(table.block_ids[index], table.hashes[index], parent)
        table.num_findable = full

    def release_passed(self, table: BlockTable, num_computed_tokens: int) -> None:
        """Gives back the blocks that no further token of the sequence will see, nor a fork of it made now."""
        if self._window is None:
            return
        passed = (num_computed_tokens - self._window + 1) // self.block_size - 1  # a fork begins a block earlier
        for block in table.block_ids[table.num_released : max(0, passed)]:
            self._pool.release(block, keep=block in self._cache)
        table.num_released = max(table.num_released, passed)

    def fork(self, table: BlockTable, num_tokens: int) -> BlockTable:
        """A second table that shares the first one's full blocks among its first `num_tokens` computed tokens.

        The last of these tokens stays to be computed by the new sequence, so that it has logits to sample from.
        """
        shared = (num_tokens - 1) // self.block_size
        child = BlockTable(table.cache_salt, table.hashes[: num_tokens // self.block_size])
        child.block_ids = table.block_ids[:shared]
        child.num_findable = min(table.num_findable, shared)
        child.num_released = min(table.num_released, shared)
        for block in child.held:
            self._pool.share(block)
        return child

    def free(self, table: BlockTable) -> None:
        """Gives all the table's blocks back. Those at a sequence's end are overwritten before those at its start."""
        for block in reversed(table.held):
            self._pool.release(block, keep=block in self._cache)
        table.block_ids = []
        table.num_findable = table.num_released = 0

    def clear(self) -> None:
        """Makes all blocks unfindable; sequences keep theirs."""
        if self._caching:
            self._cache.clear()
            self._host.clear()

    def take_copies(self) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
        """What the next step copies between device and host before it computes: see HostTier.take_copies."""
        return self._host.take_copies()

    def take_events(self) -> list[KvEvent]:
        """Changes of the prefix cache since the last call."""
        return self._recorder.take()

    def snapshot(self) -> list[KvEvent]:
        """All that is findable now, as events."""
        return self._cache.snapshot()

    def check(self, tables: Sequence[BlockTable]) -> None:
        """Proves that no block is lost: free + cached + used is all there are, and `tables` hold just those used.

        Args:
            tables: those of all live sequences.

        Raises:
            RuntimeError: a block leaked, was freed twice, or is held by nobody in `tables`.
        """
        self._pool.check()
        self._cache.check()
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
            parent = table.hashes[len(table.block_ids) - 1] if table.block_ids else b""
            self._cache.store(block, block_hash, parent)
            table.block_ids.append(block)

    def _take(self) -> int:
        block = self._pool.take()
        block_hash = self._cache.forget(block)
        if block_hash is not None and self._host.num_blocks:
            self._host.keep(block_hash, block)
        return block
