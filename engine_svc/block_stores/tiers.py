"""Several block stores, from near to far: the half of kv_cache/connectors/tiers.py that moves blocks."""

from __future__ import annotations

from collections.abc import Sequence

from engine_svc.block_stores.base import BlockStore, NoStore
from engine_svc.plan import BlockTransfer, EndedTransfer, Transfers


class Tiers(BlockStore):
    """Hands each store its transfers: by their keys, which tell the number of the store, divided by how many there are.

    Transfers without a key are the first store's, and come first: it takes what is about to be overwritten.
    """

    def __init__(self, stores: Sequence[BlockStore]) -> None:
        self._stores = stores

    def begin(self, transfers: Transfers) -> None:
        """See BlockStore.begin."""
        for number, store in enumerate(self._stores):
            store.begin(
                Transfers(
                    self._of(number, transfers.saves),
                    self._of(number, transfers.loads),
                    [key for key in transfers.cancelled if key % len(self._stores) == number],
                )
            )

    def take_ended(self) -> list[EndedTransfer]:
        """See BlockStore.take_ended."""
        return [end for store in self._stores for end in store.take_ended()]

    def close(self) -> None:
        """See BlockStore.close."""
        for store in self._stores:
            store.close()

    def _of(self, number: int, transfers: Sequence[BlockTransfer]) -> list[BlockTransfer]:
        return [each for each in transfers if each.key % len(self._stores) == number]


def joined(stores: Sequence[BlockStore]) -> BlockStore:
    """One store in place of any number."""
    return Tiers(stores) if len(stores) > 1 else next(iter(stores), NoStore())
