"""Block transfers that outlast a step: who holds their blocks, which tables wait for them, and until when."""

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
    """A load that a table waits for."""

    key: int
    hashes: Sequence[bytes]
    deadline: float  # in the clock's seconds


class TransfersUnderWay:
    """Holds the blocks of each transfer until the store is done with them, even if no sequence needs them any more.

    So a sequence may continue, be aborted or be preempted at any time: the connector is told that nothing waits for
    the transfer, and its blocks are released when it has ended.
    """

    def __init__(self, connector: KvConnector, pool: BlockPool, cache: PrefixCache, clock: Callable[[], float]) -> None:
        """
        Args:
            cache: prefix cache of the only group of layers.
            clock: returns seconds.
        """
        self._connector = connector
        self._pool = pool
        self._cache = cache
        self._clock = clock
        self._keys = itertools.count(1)
        self._held: dict[int, Sequence[int]] = {}  # transfer key → its blocks
        self._awaited: dict[BlockTable, _Awaited] = {}
        self._arrived: list[BlockTable] = []

    @property
    def is_active(self) -> bool:
        """Whether any transfer is under way."""
        return bool(self._held)

    @property
    def held(self) -> Iterable[int]:
        """The blocks of all transfers, once per reference."""
        return itertools.chain(*self._held.values())

    def load(self, table: BlockTable, hashes: Sequence[bytes], block_ids: list[int], wait_seconds: float) -> None:
        """Starts loading the blocks that follow the table's own; the table waits for them.

        Args:
            block_ids: blocks just taken from the pool.
            wait_seconds: the table waits at most this long.
        """
        key = next(self._keys)
        self._held[key] = block_ids
        self._awaited[table] = _Awaited(key, hashes, self._clock() + wait_seconds)
        self._connector.load(key, hashes, block_ids)

    def save(self, hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Starts saving blocks that are full and computed."""
        for block in block_ids:
            self._pool.share(block)
        key = next(self._keys)
        self._held[key] = block_ids
        self._connector.save(key, hashes, block_ids)

    def abandon(self, table: BlockTable) -> None:
        """Stops a table's waiting; does nothing if it does not wait."""
        if awaited := self._awaited.pop(table, None):
            self._connector.cancel(awaited.key)
        elif table in self._arrived:
            self._arrived.remove(table)

    def abandon_all(self) -> None:
        """Cancels all transfers; tables that wait continue without them."""
        self._arrived.extend(self._awaited)
        self._awaited.clear()
        for key in self._held:
            self._connector.cancel(key)

    def end(self, ends: Iterable[EndedTransfer]) -> None:
        """Books transfers that the store has reported as ended. A load's arrived blocks become its table's."""
        awaiting = {awaited.key: table for table, awaited in self._awaited.items()}
        for end in ends:
            block_ids = self._held.pop(end.key, None)
            if block_ids is None:  # its end crossed with a cancellation and is already booked
                continue
            self._connector.ended(end)
            table, count = awaiting.get(end.key), 0
            if table is not None:
                table.num_loaded = count = end.num_blocks
                for block_hash, block in zip(self._awaited.pop(table).hashes[:count], block_ids, strict=False):
                    self.append(table, block_hash, block)
                self._arrived.append(table)
            for block in block_ids[count:]:
                self._pool.release(block, keep=block in self._cache)

    def take_arrivals(self) -> list[BlockTable]:
        """Returns the tables that no longer wait: their transfer has ended, or their deadline has passed."""
        now = self._clock()
        for table in [table for table, awaited in self._awaited.items() if awaited.deadline <= now]:
            self.abandon(table)
            self._arrived.append(table)
        arrived, self._arrived = self._arrived, []
        return arrived

    def append(self, table: BlockTable, block_hash: bytes, block: int) -> None:
        """Appends a block to the table and makes it findable by others."""
        self._cache.store(block, block_hash, table.hashes[len(table) - 1] if len(table) else b"")
        table.block_ids[0].append(block)
        table.num_findable += 1
