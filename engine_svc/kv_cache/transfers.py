"""Transfers of blocks that no step ends: who holds their blocks meanwhile, who waits for them, and until when."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from engine_svc.kv_cache.block_pool import BlockPool
from engine_svc.kv_cache.block_table import BlockTable
from engine_svc.kv_cache.connectors.base import KvConnector
from engine_svc.kv_cache.prefix_cache import PrefixCache
from engine_svc.plan import EndedTransfer


@dataclass(frozen=True)
class _Awaited:
    """A load that a sequence waits for."""

    key: int
    hashes: Sequence[bytes]
    deadline: float  # on the clock


class TransfersUnderWay:
    """Each transfer under way holds its blocks until the store has done with them, whoever has lost interest meanwhile.

    So a sequence may go on, be aborted or lose its place at any time: the connector is told that nobody waits, and the
    blocks come back when the transfer has ended.
    """

    def __init__(self, connector: KvConnector, pool: BlockPool, cache: PrefixCache, clock: Callable[[], float]) -> None:
        """
        Args:
            cache: of the only group of layers.
            clock: seconds.
        """
        self._connector = connector
        self._pool = pool
        self._cache = cache
        self._clock = clock
        self._keys = itertools.count(1)
        self._held: dict[int, Sequence[int]] = {}  # by key, the blocks of each transfer
        self._awaited: dict[BlockTable, _Awaited] = {}
        self._arrived: list[BlockTable] = []

    @property
    def is_active(self) -> bool:
        """Whether any is under way."""
        return bool(self._held)

    @property
    def held(self) -> Iterable[int]:
        """The blocks of all transfers, each as often as it has a reference from them."""
        return itertools.chain(*self._held.values())

    def load(self, table: BlockTable, hashes: Sequence[bytes], block_ids: list[int], wait_seconds: float) -> None:
        """Begins to bring the blocks that follow those of the table, which waits for them.

        Args:
            block_ids: just taken from the pool.
        """
        key = next(self._keys)
        self._held[key] = block_ids
        self._awaited[table] = _Awaited(key, hashes, self._clock() + wait_seconds)
        self._connector.load(key, hashes, block_ids)

    def save(self, hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Begins to take blocks away that are full and computed."""
        for block in block_ids:
            self._pool.share(block)
        key = next(self._keys)
        self._held[key] = block_ids
        self._connector.save(key, hashes, block_ids)

    def abandon(self, table: BlockTable) -> None:
        """The table does not wait any more; no error if it does not."""
        if awaited := self._awaited.pop(table, None):
            self._connector.cancel(awaited.key)
        elif table in self._arrived:
            self._arrived.remove(table)

    def abandon_all(self) -> None:
        """What is under way is not to be used by anybody; whoever waits goes on without it."""
        self._arrived.extend(self._awaited)
        self._awaited.clear()
        for key in self._held:
            self._connector.cancel(key)

    def end(self, ends: Iterable[EndedTransfer]) -> None:
        """What the store has reported. A load's blocks become its table's, as many as have come."""
        awaiting = {awaited.key: table for table, awaited in self._awaited.items()}
        for end in ends:
            block_ids = self._held.pop(end.key, None)
            if block_ids is None:  # its end and the word that nobody waits have crossed
                continue
            self._connector.ended(end)
            table, count = awaiting.get(end.key), 0
            if table is not None:
                count = end.num_blocks
                for block_hash, block in zip(self._awaited.pop(table).hashes[:count], block_ids, strict=False):
                    self.append(table, block_hash, block)
                self._arrived.append(table)
            for block in block_ids[count:]:
                self._pool.release(block, keep=block in self._cache)

    def take_arrivals(self) -> list[BlockTable]:
        """The tables that wait no longer: as many of their blocks have come as will, or their time is over."""
        now = self._clock()
        for table in [table for table, awaited in self._awaited.items() if awaited.deadline <= now]:
            self.abandon(table)
            self._arrived.append(table)
        arrived, self._arrived = self._arrived, []
        return arrived

    def append(self, table: BlockTable, block_hash: bytes, block: int) -> None:
        """The table's next block, which others find too from now on."""
        self._cache.store(block, block_hash, table.hashes[len(table) - 1] if len(table) else b"")
        table.block_ids[0].append(block)
        table.num_findable += 1
