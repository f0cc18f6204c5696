"""The connector used when blocks are kept on the device only."""

from __future__ import annotations

from collections.abc import Sequence

from engine_svc.kv_cache.block_table import BlockTable
from engine_svc.kv_cache.connectors.base import NOTHING, Found, KvConnector
from engine_svc.plan import NO_TRANSFERS, Transfers


class NoConnector(KvConnector):
    """Finds and keeps nothing."""

    def find(self, table: BlockTable, hashes: Sequence[bytes]) -> Found:
        """See KvConnector.find."""
        return NOTHING

    def load(self, key: int, hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Never called: `find` finds nothing that could be loaded."""
        raise NotImplementedError

    def take_transfers(self) -> Transfers:
        """See KvConnector.take_transfers."""
        return NO_TRANSFERS

    def clear(self) -> None:
        """See KvConnector.clear."""
