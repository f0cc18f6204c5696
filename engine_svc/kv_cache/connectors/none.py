"""The connector used when blocks are kept on the device only."""

from __future__ import annotations

from collections.abc import Sequence

from engine_svc.kv_cache.block_name import BlockName
from engine_svc.kv_cache.connectors.base import KvConnector
from engine_svc.plan import NO_TRANSFERS, Transfers


class NoConnector(KvConnector):
    """Finds and keeps nothing."""

    def has(self, name: BlockName) -> bool:
        """See KvConnector.has."""
        return False

    def load(self, key: int, names: Sequence[BlockName], block_ids: Sequence[int]) -> None:
        """Never called: there is nothing that could be loaded."""
        raise NotImplementedError

    def take_transfers(self) -> Transfers:
        """See KvConnector.take_transfers."""
        return NO_TRANSFERS

    def clear(self) -> None:
        """See KvConnector.clear."""
