"""Transfers that outlast a step: who holds their blocks and states, which tables wait for them, and until when."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from engine_svc.kv_cache.block_name import BlockName
from engine_svc.kv_cache.block_table import BlockTable
from engine_svc.kv_cache.connectors.base import KvConnector
from engine_svc.kv_cache.device_tier import DeviceTier
from engine_svc.kv_cache.prefix import Prefix
from engine_svc.plan import EndedTransfer


@dataclass(frozen=True)
class _Awaited:
    """A load that a table waits for."""

    key: int
    found: Prefix
    deadline: float  # in the clock's seconds


class TransfersUnderWay:
    """Holds the blocks of each transfer until the store is done with them, even if no sequence needs them any more.

    So a sequence may continue, be aborted or be preempted at any time: the connector is told that nothing waits for
    the transfer, and its blocks are released when it has ended. A table that waits is empty; the blocks on the device
    that it will begin with are held for it.
    """

    def __init__(self, connector: KvConnector, device: DeviceTier, clock: Callable[[], float]) -> None:
        """
        Args:
            clock: returns seconds.
        """
        self._connector = connector
        self._device = device
        self._clock = clock
        self._keys = itertools.count(1)
        self._held: dict[int, Sequence[int]] = {}  # transfer key → the blocks that it moves
        self._awaited: dict[BlockTable, _Awaited] = {}
        self._arrived: list[BlockTable] = []

    @property
    def is_active(self) -> bool:
        """Whether any transfer is under way."""
        return bool(self._held)

    @property
    def held(self) -> Iterable[int]:
        """The blocks of all transfers, and those that tables which wait will begin with, once per reference."""
        return itertools.chain(*self._held.values(), *(awaited.found.held for awaited in self._awaited.values()))

    def load(self, table: BlockTable, found: Prefix, block_ids: list[int], wait_seconds: float) -> None:
        """Starts loading what is absent of a prefix; the table waits for it.

        Args:
            found: its blocks on the device have one more reference, for the table.
            block_ids: just taken, to load into.
            wait_seconds: the table waits at most this long.
        """
        key = next(self._keys)
        self._held[key] = block_ids
        self._awaited[table] = _Awaited(key, found, self._clock() + wait_seconds)
        self._connector.load(key, found.names(table.hashes), block_ids)

    def save(self, names: Sequence[BlockName], block_ids: Sequence[int]) -> None:
        """Starts saving blocks that are full and computed, or states."""
        self._device.share(block_ids)
        key = next(self._keys)
        self._held[key] = block_ids
        self._connector.save(key, names, block_ids)

    def abandon(self, table: BlockTable) -> None:
        """Stops a table's waiting; does nothing if it does not wait."""
        if awaited := self._awaited.pop(table, None):
            self._device.release(awaited.found.held)
            self._connector.cancel(awaited.key)
        elif table in self._arrived:
            self._arrived.remove(table)

    def abandon_all(self) -> None:
        """Cancels all transfers; tables that wait continue without them."""
        self._arrived.extend(self._awaited)
        for awaited in self._awaited.values():
            self._device.release(awaited.found.held)
        self._awaited.clear()
        for key in self._held:
            self._connector.cancel(key)

    def end(self, ends: Sequence[EndedTransfer]) -> None:
        """Books transfers that the store has reported as ended.

        If all of a load has arrived, its table begins with the prefix. Otherwise the table stays empty, and what has
        arrived is findable.
        """
        awaiting = {awaited.key: table for table, awaited in self._awaited.items()}
        for end in self._connector.ended(ends):
            block_ids = self._held.pop(end.key, None)
            if block_ids is None:  # its end crossed with a cancellation and is already booked
                continue
            if (table := awaiting.get(end.key)) is None:
                self._device.release(block_ids)
                continue
            found = self._awaited.pop(table).found
            self._device.publish(found, table.hashes, block_ids[: end.num_blocks])
            self._arrived.append(table)
            if end.num_blocks == len(block_ids):
                self._device.begin(table, found, block_ids)
                table.hits = found.hits
            else:
                self._device.release([*found.held, *block_ids])

    def take_arrivals(self) -> list[BlockTable]:
        """Returns the tables that no longer wait: their transfer has ended, or their deadline has passed."""
        now = self._clock()
        for table in [table for table, awaited in self._awaited.items() if awaited.deadline <= now]:
            self.abandon(table)
            self._arrived.append(table)
        arrived, self._arrived = self._arrived, []
        return arrived
