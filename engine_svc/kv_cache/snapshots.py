"""Saved states of recurrent layers, by the prefix after which they were saved.

Cached keys and values hold every position of a prefix; a state holds one. So a sequence can begin from cached blocks
only where a state was saved too: at multiples of some number of tokens, as in vLLM's `align` mode.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from engine_svc.kv_cache.block_pool import BlockPool
from engine_svc.kv_cache.block_table import AwaitedState, BlockTable
from engine_svc.kv_cache.prefix_cache import PrefixCache


class StateSnapshots:
    """The places of the runner's StateCache where it keeps saved states.

    A place is *awaited* by the sequence whose step fills it, *findable* by the hash of a prefix, or free. Findable ones
    are overwritten when no other is left: first those that a later one of the same prompt or answer has replaced,
    provided that no sequence has begun with them, then those used least recently.
    """

    def __init__(self, count: int, evicted: Callable[[bytes, int], None]) -> None:
        """
        Args:
            evicted: called with the hash and the place of a state that the next step will overwrite, unless a later one
                has replaced it.
        """
        self._pool = BlockPool(count)
        self._evicted = evicted
        self._index = PrefixCache(None)
        # Of the findable ones: those with which a sequence has begun, and those that a later one has replaced, oldest
        # first.
        self._used: set[int] = set()
        self._replaced: dict[int, None] = {}

    def find(self, block_hash: bytes) -> int | None:
        """The place of the state after the blocks with this hash; None if it is not saved."""
        return self._index.get(block_hash)

    @property
    def has_free(self) -> bool:
        """Whether any place can be overwritten."""
        return self._pool.num_free > 0

    def use(self, place: int) -> None:
        """Notes that a sequence begins with a saved state."""
        if place in self._index:
            self._used.add(place)
            self._replaced.pop(place, None)

    def share(self, place: int) -> None:
        """Adds a reference to a place, which is not overwritten until it is released."""
        self._pool.share(place)

    def release(self, place: int) -> None:
        """Drops a reference to a place."""
        self._pool.release(place, keep=place in self._index)

    def store(self, place: int, block_hash: bytes) -> None:
        """Makes the state after the blocks with this hash findable in a place, unless it already is in another."""
        self._index.store(place, block_hash, b"")

    def take(self) -> int:
        """Takes a place, with one reference. The caller has checked that one is free."""
        replaced = None
        if self._pool.next_free in self._index:  # all free ones are findable
            replaced = next((place for place in self._replaced if not self._pool.references(place)), None)
        if replaced is None:
            place = self._pool.take()
        else:
            place = replaced
            self._pool.share(place)
        self._replaced.pop(place, None)
        block_hash = self._index.forget(place)
        if block_hash is not None and replaced is None:
            self._evicted(block_hash, place)
        self._used.discard(place)
        return place

    def await_one(self, table: BlockTable, num_tokens: int, replaces_last: bool) -> int | None:
        """A place for the state after `num_tokens` tokens, which the next step saves; None if all are awaited.

        Args:
            replaces_last: the state that the sequence saved before this one may be overwritten first.
        """
        if not self._pool.num_free:
            return None
        place = self.take()
        table.snapshots.append(AwaitedState(num_tokens, place, replaces_last))
        return place

    def arrive(self, table: BlockTable, num_computed_tokens: int, block_size: int) -> list[tuple[bytes, int]]:
        """Makes the saved states of computed tokens findable, except those of a private table.

        Returns:
            The hashes and places of those that were not findable before.
        """
        found = []
        while table.snapshots and table.snapshots[0].num_tokens <= num_computed_tokens:
            num_tokens, place, replaces_last = table.snapshots.pop(0)
            is_new = not table.is_private and self.find(table.hashes[num_tokens // block_size - 1]) is None
            if is_new:
                last = self.find(table.last_snapshot)
                if replaces_last and last is not None and last not in self._used:
                    self._replaced[last] = None
                table.last_snapshot = table.hashes[num_tokens // block_size - 1]
                self.store(place, table.last_snapshot)
                found.append((table.last_snapshot, place))
            self.release(place)
        return found

    def abandon(self, table: BlockTable) -> None:
        """Frees the places that a table awaits."""
        for each in table.snapshots:
            self._pool.release(each.place, keep=False)
        table.snapshots.clear()
        table.last_snapshot = b""

    def clear(self) -> None:
        """Forgets all saved states."""
        self._index.clear()
        self._used.clear()
        self._replaced.clear()

    def check(self, tables: Sequence[BlockTable], references: Mapping[int, int]) -> None:
        """Verifies that each place is free, or awaited by one table, or referred to as often as told.

        Args:
            references: how often other than awaiting tables refer to a place.

        Raises:
            RuntimeError: a place is lost, or has a reference without a holder.
        """
        self._pool.check()
        self._index.check()
        if any(place not in self._index for place in (*self._used, *self._replaced)):
            raise RuntimeError("a place is noted as used or replaced that holds no saved state")
        expected = Counter(references)
        expected.update(each.place for table in tables for each in table.snapshots)
        wrong = [place for place in range(self._pool.num_blocks) if self._pool.references(place) != expected[place]]
        if wrong:
            raise RuntimeError(f"places {wrong[:10]} of saved states have another number of references than holders")
