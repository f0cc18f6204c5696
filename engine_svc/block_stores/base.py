"""The contract of a block store: on each rank, the half of a connector that moves blocks.

The other half, kv_cache/connectors/base.py, decides which.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from engine_svc.plan import EndedTransfer, Transfers


class BlockStore(ABC):
    """Called for each step, in the thread that launches it; a step may have nothing to compute.

    A transfer without a key is over, in the order of the device's stream, before the step computes: saves first, then
    loads. One with a key takes as long as it takes, and ends once: with the number of its first blocks that have been
    moved. Before that it may read or write its blocks at any time, afterwards never. One that is cancelled is to end
    soon; where its key is not known (the step that it came with has failed before it got here), with no blocks.
    """

    @abstractmethod
    def begin(self, transfers: Transfers) -> None:
        """Before a step computes. Waits for nothing but copies of its own memory.

        Steps launched before may still use the blocks on the device: what does not move them in the order of its stream
        lets these get to their end first.
        """

    def take_ended(self) -> list[EndedTransfer]:
        """The transfers with a key that have ended since the last call."""
        return []
