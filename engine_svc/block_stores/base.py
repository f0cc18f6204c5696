"""The contract of a block store: the half of a connector that moves blocks, on each rank.

The other half, kv_cache/connectors/base.py, decides which blocks to move.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from engine_svc.plan import EndedTransfer, Transfers


class BlockStore(ABC):
    """Contract of a block store. Called for each step, in the thread that launches it, even if it computes nothing.

    A transfer without a key finishes, in the order of the device's stream, before the step computes: saves first, then
    loads. A transfer with a key may take any time, and ends exactly once: with the number of its first blocks that
    have been moved. Until then it may read or write its blocks at any time, afterwards never. A canceled transfer must
    end soon; if its key is unknown (the step that carried it failed before reaching the store), with zero blocks.
    """

    @abstractmethod
    def begin(self, transfers: Transfers) -> None:
        """Begins a step's transfers before the step computes. Waits for nothing but copies of its own memory.

        Steps launched earlier may still use the blocks on the device: a store that does not move blocks in the order of
        the device's stream must let those steps finish first.
        """

    def take_ended(self) -> list[EndedTransfer]:
        """The transfers with a key that have ended since the last call."""
        return []

    def close(self) -> None:
        """Finishes what is under way outside the device. Nothing is called afterwards."""
        return


class NoStore(BlockStore):
    """For workers whose blocks never leave the device."""

    def begin(self, transfers: Transfers) -> None:
        """See BlockStore.begin; there are none."""
