"""The KV cache as the scheduler sees it: look a prefix up, allocate, make findable, fork, free."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine_svc.kv_cache.block_name import STATES, BlockName
from engine_svc.kv_cache.block_table import BlockTable
from engine_svc.kv_cache.connectors.base import KvConnector
from engine_svc.kv_cache.connectors.none import NoConnector
from engine_svc.kv_cache.device_tier import DeviceTier
from engine_svc.kv_cache.events import BlockContent, CacheContents, Changes, EventRecorder, Tier
from engine_svc.kv_cache.facts import KvCacheFacts
from engine_svc.kv_cache.prefix import ABSENT, Hits, Prefix
from engine_svc.kv_cache.prefix_search import PrefixSearch
from engine_svc.kv_cache.traffic import Traffic
from engine_svc.kv_cache.transfers import TransfersUnderWay
from engine_svc.layer_groups import most_blocks, tokens_under_way
from engine_svc.plan import EndedTransfer, Transfers
from quire.block_hash import extend_hashes
from quire.options.cache import CacheOptions


class KvCacheManager:
    """Owns all KV cache blocks of a worker.

    A block is *used* (in some sequence's table), *cached* (in none, but findable by its hash) or *free*. Cached blocks
    count as free room: the least recently used one is overwritten first. Only full, computed blocks are shared, so
    a block that two sequences hold is never written to.
    """

    def __init__(
        self,
        facts: KvCacheFacts,
        options: CacheOptions,
        connector: KvConnector | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """
        Events cover only the blocks of the first group of layers: blocks that the other groups' windows need may be
        evicted sooner, and states of recurrent layers are saved after few of them, so an index built from the events
        may overestimate what is cached.

        Args:
            clock: returns seconds; the deadlines of awaited blocks are measured on it.
        """
        self.block_size = facts.block_size
        self._has_states = facts.has_states
        # Whether blocks are kept for sequences with the same beginning.
        self.is_caching = options.enable_prefix_caching and (not facts.has_states or facts.num_snapshots > 0)
        # Multiples of tokens after which states are saved; 0 if none are.
        self.snapshot_tokens = facts.snapshot_tokens if self.is_caching and facts.has_states else 0
        self._windows = facts.windows
        self._has_windows = any(window is not None for window in self._windows)
        self._tokens_under_way = tokens_under_way(facts.max_num_batched_tokens, facts.num_stages)
        self._records_contents = options.events().is_on
        self._connector = connector or NoConnector()
        self._recorder = EventRecorder(self._connector.recorder)
        self._device = DeviceTier(facts, self._recorder.device, self._connector.keep)
        self._search = PrefixSearch(self._windows, self.block_size, self._device.caches)
        self._transfers = TransfersUnderWay(self._connector, self._device, clock)
        self._traffic = Traffic(facts)
        self._beginning: list[int] = []  # states that sequences begin with in the step that is being planned

    @property
    def num_blocks(self) -> int:
        """Total number of blocks."""
        return self._device.pool.num_blocks

    @property
    def num_used_blocks(self) -> int:
        """Blocks held by live sequences or transfers."""
        return self._device.pool.num_used

    @property
    def has_connector(self) -> bool:
        """Whether blocks are kept elsewhere, too."""
        return not isinstance(self._connector, NoConnector)

    @property
    def moved_bytes(self) -> Mapping[str, Any]:
        """Bytes that moved between the device and other places: see Traffic."""
        return self._traffic.counters

    @property
    def num_host_blocks(self) -> int:
        """Blocks of the host tier."""
        return self._connector.num_blocks

    @property
    def num_used_host_blocks(self) -> int:
        """Blocks of the host tier that are in use."""
        return self._connector.num_used_blocks

    def lookup(self, table: BlockTable, token_ids: Sequence[int], may_await: bool = True) -> Prefix:
        """Finds the cached blocks of the sequence's longest cached prefix, for `allocate` or `await_blocks`.

        The last token is never included: at least one token must be computed to sample from.

        Args:
            may_await: whether blocks that arrive later are acceptable. A sequence that has waited once does not again.
        """
        if not self.is_caching:
            return Prefix()
        self._extend_hashes(table, token_ids)
        wanted = table.hashes[: (len(token_ids) - 1) // self.block_size]
        hits, state = self._find(table, wanted, may_await and not table.has_awaited)
        if not hits.total:
            return Prefix()
        found = self._search.prefix(wanted, hits, state, self._connector)
        return self._with_contents(found, table, token_ids)

    def _find(self, table: BlockTable, wanted: list[bytes], may_await: bool) -> tuple[Hits, int | None]:
        """Searches place by place, from near to far. Where a farther one makes the prefix no longer, it is not used."""
        on_device, state = self._longest(table, wanted)
        hits = Hits(on_device)
        if not self.has_connector:
            return hits, state
        self._connector.expect(wanted[: table.offer.num_tokens // self.block_size], table.offer.source)
        memory = self._connector.memory
        if memory is not None:
            count, where = self._longest(table, wanted, memory)
            if count > hits.total:
                hits, state = Hits(on_device, count - on_device), where
        if may_await and memory is not self._connector:
            count, where = self._longest(table, wanted, self._connector)
            if count > hits.total:
                hits, state = hits._replace(elsewhere=count - hits.total), where
        return hits, state

    def _longest(
        self, table: BlockTable, wanted: list[bytes], elsewhere: KvConnector | None = None
    ) -> tuple[int, int | None]:
        """The longest prefix that a sequence can begin with, in blocks, and the states after it: see Prefix.state.

        Args:
            elsewhere: what this connector has counts as well, if there is room to load it.
        """
        longest = self._search.longest(wanted, elsewhere)
        if not self._has_states:
            return longest, None
        every = self.snapshot_tokens // self.block_size
        table.branch = longest // every * self.snapshot_tokens
        may_load = elsewhere if self._device.snapshots.has_free else None
        for count in range(longest // every * every, 0, -every):
            state = self._device.state_after(wanted[count - 1])
            if state is None and may_load is not None and may_load.has(BlockName(wanted[count - 1], STATES)):
                state = ABSENT
            if state is None or (self._has_windows and self._search.longest(wanted[:count], elsewhere) < count):
                continue
            return count, state
        return 0, None

    def _with_contents(self, found: Prefix, table: BlockTable, token_ids: Sequence[int]) -> Prefix:
        """Notes what the blocks hold that are loaded, if the events tell it."""
        if not self._records_contents:
            return found
        indices = (index for index, group in found.absent() if not group)
        return replace(found, contents={index: self._content(table, token_ids, index) for index in indices})

    def allocate(self, table: BlockTable, num_tokens: int, found: Prefix | None = None) -> list[list[int]] | None:
        """Extends the table until it holds `num_tokens`.

        Args:
            found: result of `lookup` that an empty table begins with, without awaited blocks.

        Returns:
            The blocks added to each group, excluding those found; empty when there are none. None when there is not
            enough room; then nothing has changed.
        """
        if not found and table.block_ids and num_tokens <= len(table.block_ids[0]) * self.block_size:
            return []  # as in most steps of most sequences
        found = found or Prefix()
        missing = -(-num_tokens // self.block_size) - len(table) - len(found)
        if missing * len(self._windows) + self._cost(found) > self._device.pool.num_free:
            return None
        self._begin(table, found)
        added = [[self._device.take_block() for _ in range(missing)] for _ in self._windows]
        for block_ids, blocks in zip(table.block_ids, added, strict=True):
            block_ids.extend(blocks)
        return added if missing > 0 else []

    def cut(self, table: BlockTable, num_computed_tokens: int, count: int, *, is_last: bool) -> int:
        """How many of the next `count` tokens a step should compute, to end where states of recurrent layers are saved.

        That is where another prompt parted from this one, at the last place before the last known token (which is
        among these tokens if `is_last`), or else where at least half of the tokens are computed.
        """
        if not self.snapshot_tokens:
            return count
        end = (num_computed_tokens + count - is_last) // self.snapshot_tokens * self.snapshot_tokens
        if num_computed_tokens < table.branch <= end:
            return table.branch - num_computed_tokens
        left = end - num_computed_tokens
        return left if left > 0 and (is_last or 2 * left >= count) else count

    def place_snapshot(self, table: BlockTable, num_tokens: int, num_prompt_tokens: int) -> int | None:
        """A place where the next step, after which `num_tokens` tokens are computed, saves the sequence's state.

        None if it saves none: it already is saved, is not wanted, or all places are awaited.
        """
        if num_tokens % self.snapshot_tokens or table.is_private:
            return None
        last = num_tokens // self.block_size - 1
        if last < len(table.hashes) and self._device.snapshots.find(table.hashes[last]) is not None:
            return None
        # The state before the last token of the prompt serves those who send it again.
        keeps_last = num_tokens - self.snapshot_tokens < num_prompt_tokens <= num_tokens
        return self._device.snapshots.await_one(table, num_tokens, replaces_last=not keeps_last)

    def await_blocks(self, table: BlockTable, found: Prefix) -> None:
        """Has an empty table wait for what is absent of a prefix, and then begin with the whole: see `take_arrivals`.

        The caller has checked that there is room.

        Raises:
            RuntimeError: the blocks found need no waiting.
        """
        if found.wait_seconds is None:
            raise RuntimeError("these blocks need no waiting: `allocate` begins with them")
        table.has_awaited = True
        self._transfers.load(table, found, self._hold(table, found), found.wait_seconds)

    def abandon(self, table: BlockTable) -> None:
        """Stops a table's waiting. The awaited blocks become free once the connector has released them."""
        self._transfers.abandon(table)

    def take_arrivals(self) -> list[BlockTable]:
        """Returns the tables that no longer wait. They are empty if not all of their blocks have arrived."""
        return self._transfers.take_arrivals()

    def can_extend(self, table: BlockTable, num_tokens: int) -> bool:
        """Whether `allocate` would extend the table to `num_tokens` now."""
        missing = -(-num_tokens // self.block_size) - len(table)
        return missing * len(self._windows) <= self._device.pool.num_free

    def has_room(self, table: BlockTable, num_tokens: int, found: Prefix | None = None) -> bool:
        """Whether a sequence can reach `num_tokens` if others allocate nothing in the meantime."""
        found = found or Prefix()
        needed = -(-num_tokens // self.block_size) - len(table) - len(found)
        missing = 0
        for group, window in enumerate(self._windows):
            most = most_blocks(window, num_tokens, self.block_size, self._tokens_under_way)
            missing += min(needed, max(0, most - table.num_held(group) - found.num_held(group)))
        return missing + self._cost(found) <= self._device.pool.num_free

    def _cost(self, found: Prefix) -> int:
        """Free blocks that the prefix takes: cached ones without references, and those that a connector loads into."""
        num_absent = sum(1 for _, group in found.absent() if group != STATES)
        return num_absent + sum(1 for block in found.blocks if not self._device.pool.references(block))

    def _begin(self, table: BlockTable, found: Prefix) -> None:
        """Begins a table without blocks with a prefix, which is loaded before the step computes; else does nothing."""
        if table.block_ids:
            return
        if not found:
            table.block_ids = [[] for _ in self._windows]
            table.num_released = [0] * len(self._windows)
            return
        loaded = self._hold(table, found)
        if loaded:
            self._connector.load(0, found.names(table.hashes), loaded)
            self._device.publish(found, table.hashes, loaded)
        self._device.begin(table, found, loaded)

    def _hold(self, table: BlockTable, found: Prefix) -> list[int]:
        """Adds references to what is on the device of a prefix, and takes what the rest is loaded into."""
        self._device.share(found.held)
        self._connector.pin(found.names(table.hashes))
        return self._device.take_absent(found)

    def begin_states(self, table: BlockTable) -> int:
        """The place of the saved states that a sequence begins with in the step that is being planned; -1 for none."""
        if table.state is None:
            return -1
        number, table.state = table.state, None
        self._beginning.append(number)
        return self._device.place_of(number)

    def book(self, table: BlockTable, token_ids: Sequence[int], num_computed_tokens: int) -> None:
        """After a step, makes newly full blocks findable and releases those that a sliding window has passed."""
        if self.is_caching and num_computed_tokens >= (table.num_findable + 1) * self.block_size:
            self.make_findable(table, token_ids, num_computed_tokens)
        if table.snapshots:
            for block_hash, place in self._device.snapshots.arrive(table, num_computed_tokens, self.block_size):
                self._save([BlockName(block_hash, STATES)], [self.num_blocks + place])
        if self._has_windows:
            self.release_passed(table, num_computed_tokens)

    def make_findable(self, table: BlockTable, token_ids: Sequence[int], num_computed_tokens: int) -> None:
        """Adds the table's full, computed blocks to the prefix cache."""
        full = num_computed_tokens // self.block_size
        if not self.is_caching or table.is_private or full <= table.num_findable:
            return
        if len(table.hashes) < full:
            self._extend_hashes(table, token_ids)
        new = range(table.num_findable, full)
        if self.has_connector:
            names = [BlockName(table.hashes[index], group) for index in new for group in range(len(self._windows))]
            self._save(names, [block_ids[index] for index in new for block_ids in table.block_ids])
        for index in new:
            parent = table.hashes[index - 1] if index else b""
            content = self._content(table, token_ids, index) if self._records_contents else None
            for cache, block_ids in zip(self._device.caches, table.block_ids, strict=True):
                cache.store(block_ids[index], table.hashes[index], parent, content)
        table.num_findable = full

    def _content(self, table: BlockTable, token_ids: Sequence[int], index: int) -> BlockContent:
        first = index * self.block_size
        return BlockContent(token_ids[first : first + self.block_size], table.adapter, table.cache_salt)

    def _extend_hashes(self, table: BlockTable, token_ids: Sequence[int]) -> None:
        extend_hashes(table.hashes, token_ids, self.block_size, table.cache_salt, table.contents, table.adapter)

    def _save(self, names: Sequence[BlockName], numbers: Sequence[int]) -> None:
        """Starts saving those, among what has just been computed, that the connector wants."""
        if wanted := self._connector.wants(names):
            self._transfers.save([names[index] for index in wanted], [numbers[index] for index in wanted])

    def release_passed(self, table: BlockTable, num_computed_tokens: int) -> None:
        """Releases blocks that no further token of the sequence, or of a fork made now, will see."""
        for group, window in enumerate(self._windows):
            if window is None:
                continue
            passed = (num_computed_tokens - window + 1) // self.block_size - 1  # a fork begins one block earlier
            for block in table.block_ids[group][table.num_released[group] : max(0, passed)]:
                self._device.pool.release(block, keep=block in self._device.caches[group])
            table.num_released[group] = max(table.num_released[group], passed)

    def fork(self, table: BlockTable, num_tokens: int) -> BlockTable:
        """Returns a second table that shares the full blocks of the first `num_tokens` computed tokens.

        At least the last of these tokens is left for the new sequence to compute, so that it has logits to sample
        from. With recurrent layers, it begins like any other sequence, from what the prefix cache has.
        """
        shared = 0 if self._has_states else (num_tokens - 1) // self.block_size
        hashes = table.hashes[: num_tokens // self.block_size]
        child = BlockTable(table.cache_salt, hashes, table.contents, table.adapter)
        if shared:
            child.block_ids = [block_ids[:shared] for block_ids in table.block_ids]
            child.num_released = [min(released, shared) for released in table.num_released]
        child.num_findable = min(table.num_findable, shared)
        child.is_private = table.is_private
        for block in child.held:
            self._device.pool.share(block)
        return child

    def free(self, table: BlockTable) -> None:
        """Releases all the table's blocks. Those at the sequence's end are overwritten before those at its start."""
        for cache, block_ids, released in zip(self._device.caches, table.block_ids, table.num_released, strict=False):
            for block in reversed(block_ids[released:]):
                self._device.pool.release(block, keep=block in cache)
        self._device.snapshots.abandon(table)
        if table.state is not None:
            self._device.release([table.state])
            table.state = None
        table.block_ids, table.num_released, table.num_findable = [], [], 0
        table.is_private = False

    def clear(self, tables: Iterable[BlockTable] = ()) -> None:
        """Makes all blocks unfindable; sequences keep their blocks.

        Args:
            tables: tables whose blocks, including those computed from now on, must not become findable later either.
        """
        for table in tables:
            table.is_private = bool(table.block_ids)
        if self.is_caching:
            self._device.clear()
            self._connector.clear()
            self._transfers.abandon_all()
            self._recorder.cleared()

    @property
    def is_transferring(self) -> bool:
        """Whether a transfer is under way that no step waits for; it advances with steps, even those without tokens."""
        return self._transfers.is_active

    def is_saved(self, table: BlockTable, num_tokens: int) -> bool:
        """Whether other workers find the full blocks of the first `num_tokens` tokens, and the last states, if any.

        Blocks that the sequence began with are not counted: whoever computed them had them saved.
        """
        while table.num_saved < num_tokens // self.block_size:
            if table.num_saved >= len(table.hashes) or not self._is_kept(table.hashes[table.num_saved]):
                return False
            table.num_saved += 1
        return not table.last_snapshot or self._connector.is_saved(BlockName(table.last_snapshot, STATES))

    def _is_kept(self, block_hash: bytes) -> bool:
        return all(self._connector.is_saved(BlockName(block_hash, group)) for group in range(len(self._windows)))

    def take_transfers(self) -> Transfers:
        """Returns the transfers that the step that has been planned begins with."""
        self._device.release(self._beginning)
        self._beginning = []
        transfers = self._connector.take_transfers()
        self._traffic.begin(transfers)
        return transfers

    def end_transfers(self, ends: Sequence[EndedTransfer]) -> None:
        """Books the transfers that a step has reported as ended."""
        self._traffic.end(ends)
        self._transfers.end(ends)

    def take_changes(self) -> Changes | None:
        """Returns the prefix cache changes since the last call; None if there are none."""
        return self._recorder.take()

    def contents(self) -> CacheContents:
        """Everything that is findable now."""
        hashes = {Tier.DEVICE: self._device.caches[0].hashes(), Tier.HOST: self._connector.hashes()}
        return CacheContents(hashes, self._recorder.digests())

    def check(self, tables: Sequence[BlockTable]) -> None:
        """Verifies that no block is lost: each is free, cached or used, and used ones are held by tables or transfers.

        Args:
            tables: tables of all live sequences.

        Raises:
            RuntimeError: a block leaked, was freed twice, or has a reference without a holder.
        """
        self._connector.check()
        self._device.check(tables, itertools.chain(self._transfers.held, self._beginning))
