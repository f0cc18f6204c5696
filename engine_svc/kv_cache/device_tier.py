"""What the device keeps: blocks and saved states, who refers to them, and by what they are found."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from engine_svc.kv_cache.block_name import STATES, BlockName
from engine_svc.kv_cache.block_pool import BlockPool
from engine_svc.kv_cache.block_table import BlockTable
from engine_svc.kv_cache.events import TierRecorder
from engine_svc.kv_cache.facts import KvCacheFacts
from engine_svc.kv_cache.prefix import Prefix
from engine_svc.kv_cache.prefix_cache import PrefixCache
from engine_svc.kv_cache.snapshots import StateSnapshots


class DeviceTier:
    """The device's blocks, and its places for saved states of recurrent layers.

    All have numbers: blocks from 0 on, and places of states behind them. Connectors and transfers treat them alike.

    Attributes:
        pool: the blocks.
        caches: index of the blocks of each group of layers.
        snapshots: the saved states.
    """

    def __init__(self, facts: KvCacheFacts, recorder: TierRecorder, evicted: Callable[[BlockName, int], None]) -> None:
        """
        Args:
            recorder: records changes of the first group's index.
            evicted: called with the name and the number of what the next step will overwrite.
        """
        self._evicted = evicted
        self.pool = BlockPool(facts.num_blocks)
        self.caches = [PrefixCache(None if group else recorder) for group in range(len(facts.windows))]
        self.snapshots = StateSnapshots(
            facts.num_snapshots, lambda each, place: evicted(BlockName(each, STATES), self.pool.num_blocks + place)
        )

    def state_after(self, block_hash: bytes) -> int | None:
        """The number of the saved states after the blocks with this hash; None if they are not saved."""
        place = self.snapshots.find(block_hash)
        return None if place is None else self.pool.num_blocks + place

    def place_of(self, number: int) -> int:
        """The place of saved states with this number."""
        return number - self.pool.num_blocks

    def take_block(self) -> int:
        """Takes a block, whose contents will be overwritten. The caller has checked that one is free."""
        block = self.pool.take()
        for group, cache in enumerate(self.caches):
            block_hash = cache.forget(block)
            if block_hash is not None:
                self._evicted(BlockName(block_hash, group), block)
                break
        return block

    def take_absent(self, found: Prefix) -> list[int]:
        """Takes what a prefix is loaded into, in the order of `Prefix.absent`."""
        return [
            self.pool.num_blocks + self.snapshots.take() if group == STATES else self.take_block()
            for _, group in found.absent()
        ]

    def share(self, numbers: Iterable[int]) -> None:
        """Adds a reference to each block or state."""
        for number in numbers:
            if number < self.pool.num_blocks:
                self.pool.share(number)
            else:
                self.snapshots.share(self.place_of(number))

    def release(self, numbers: Sequence[int]) -> None:
        """Drops a reference to each block or state; those that are findable are taken last, the ends of prompts first.

        Args:
            numbers: in the order of the prompt.
        """
        for number in reversed(numbers):
            if number < self.pool.num_blocks:
                self.pool.release(number, keep=any(number in cache for cache in self.caches))
            else:
                self.snapshots.release(self.place_of(number))

    def publish(self, found: Prefix, hashes: Sequence[bytes], loaded: Sequence[int]) -> None:
        """Makes what has been loaded findable.

        Args:
            hashes: of the prefix.
            loaded: what was absent, or the first of it.
        """
        for (index, group), number in zip(found.absent(), loaded, strict=False):
            if group == STATES:
                self.snapshots.store(self.place_of(number), hashes[index])
            else:
                parent, content = hashes[index - 1] if index else b"", found.contents.get(index)
                self.caches[group].store(number, hashes[index], parent, content)

    def begin(self, table: BlockTable, found: Prefix, loaded: Sequence[int]) -> None:
        """Begins an empty table with a prefix, to all of which it now refers.

        Args:
            loaded: what was absent.
        """
        table.block_ids = [list(block_ids) for block_ids in found.block_ids]
        table.num_released, table.num_findable = list(found.first), len(found)
        table.num_saved = len(found)  # if they are not, they will never be
        table.state = found.state
        for (index, group), number in zip(found.absent(), loaded, strict=True):
            if group == STATES:
                table.state = number
            else:
                table.block_ids[group][index] = number
        if table.state is not None:
            self.snapshots.use(self.place_of(table.state))

    def clear(self) -> None:
        """Makes everything unfindable. The recorder is not told: the caller that clears all tiers does that."""
        for cache in self.caches:
            cache.clear()
        self.snapshots.clear()

    def check(self, tables: Sequence[BlockTable], held: Iterable[int]) -> None:
        """Verifies that nothing is lost: each is free, findable or referred to, as often as somebody refers to it.

        Args:
            tables: tables of all live sequences.
            held: the numbers of everything else that is referred to, once per reference.

        Raises:
            RuntimeError: a block or state leaked, was freed twice, or has a reference without a holder.
        """
        self.pool.check()
        for cache in self.caches:
            cache.check()
        begun = (table.state for table in tables if table.state is not None)
        references = Counter(itertools.chain(held, begun, *(table.held for table in tables)))
        count = self.pool.num_blocks
        wrong = [block for block in range(count) if self.pool.references(block) != references[block]]
        if wrong:
            raise RuntimeError(f"blocks {wrong[:10]} have another number of references than holders")
        self.snapshots.check(tables, {number - count: times for number, times in references.items() if number >= count})
