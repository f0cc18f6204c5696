"""The contract of a connector: another place that keeps KV blocks, beyond the device's cache.

A connector has two halves. The one here runs next to the scheduler and decides which blocks are saved and which of a
prompt's blocks are loaded, and keeps the index. The other half, a `BlockStore` on each rank (engine_svc/block_stores),
moves the blocks. Transfers to start go down with a step's plan (`Transfers`), ended ones come back with its result
(`EndedTransfer`).

Blocks are saved in one of two ways: `keep` copies what the device is about to overwrite, `save` what has just been
computed. They are loaded in one of two ways, as `wait_seconds` says: before the step computes, or some time later. In
the latter case a sequence waits, without a slot and without holding others up, and continues once all have arrived, or
begins anew with those that have. Which sequences wait, until when, and who holds the blocks meanwhile is the same for
all connectors: see kv_cache/transfers.py.

A connector sees the blocks of all groups of layers, and saved states of recurrent layers, which are treated like
blocks: names tell them apart. Which of them a prompt needs, kv_cache/prefix_search.py and the manager know.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import takewhile

from engine_svc.kv_cache.block_name import BlockName
from engine_svc.kv_cache.events import TierRecorder
from engine_svc.plan import EndedTransfer, Transfers


class KvConnector(ABC):
    """Contract of a connector. Called in the engine's thread, between steps; must never block.

    A transfer that may outlast a step has a key. From `load` or `save` on it is under way until the store reports its
    end, exactly once. Meanwhile its blocks belong to the connector: no one else writes to the blocks of a save, or
    reads or writes those of a load. A canceled transfer also ends soon, whether or not the store knows of it.

    Attributes:
        recorder: records which of the first group's blocks this worker's own memory keeps; None if none ever are.
    """

    recorder: TierRecorder | None = None

    @property
    def num_blocks(self) -> int:
        """Number of blocks that this worker's own memory has for the connector."""
        return 0

    @property
    def num_used_blocks(self) -> int:
        """Number of those blocks that are in use."""
        return 0

    def expect(self, hashes: Sequence[bytes], source: str) -> None:
        """Notes that the worker at this address has the blocks of `hashes`; replaces what was noted before.

        Called before each look-up, which may be followed by a `load` of what it has found.
        """
        return

    @abstractmethod
    def has(self, name: BlockName) -> bool:
        """Whether a block can be loaded, or is worth loading. Changes nothing.

        It may promise blocks that turn out to be missing, if sequences wait for them: then the load ends with fewer.
        """

    def num_leading(self, hashes: Sequence[bytes], group: int) -> int:
        """How many of the first blocks of `hashes`, which are not empty, can be loaded; may promise as `has` does."""
        return sum(1 for _ in takewhile(lambda block_hash: self.has(BlockName(block_hash, group)), hashes))

    @property
    def memory(self) -> KvConnector | None:
        """The part of the connector that loads what it has before the step computes: memory of this worker's own."""
        return None

    def wait_seconds(self, names: Sequence[BlockName]) -> float | None:
        """How long a sequence waits at most for these blocks; None if they are loaded before the step computes."""
        return None

    def pin(self, names: Sequence[BlockName]) -> None:
        """Protects blocks that were just found and are about to be loaded from being displaced by `keep`."""
        return

    @abstractmethod
    def load(self, key: int, names: Sequence[BlockName], block_ids: Sequence[int]) -> None:
        """Loads blocks to the device, with the transfers of the next step.

        Args:
            key: key of the transfer; 0 if they are loaded before the step computes.
        """

    def keep(self, name: BlockName, block_id: int) -> None:
        """Offers a cached block that the next step will overwrite. A copy runs before that."""
        return

    def wants(self, names: Sequence[BlockName]) -> Sequence[int]:
        """Indices into `names` of the blocks, just computed, that should be passed to `save`."""
        return ()

    def save(self, key: int, names: Sequence[BlockName], block_ids: Sequence[int]) -> None:
        """Saves wanted blocks, starting with the transfers of the next step and taking as long as needed."""
        raise NotImplementedError

    def is_saved(self, name: BlockName) -> bool:
        """Whether other workers find a block that this one has computed, as far as they ever will."""
        return True

    def cancel(self, key: int) -> None:
        """Cancels a transfer that nothing waits for any more. Its end is still reported."""
        raise NotImplementedError

    @abstractmethod
    def take_transfers(self) -> Transfers:
        """Returns the transfers that the next step begins with, each exactly once."""

    def ended(self, ends: Sequence[EndedTransfer]) -> Sequence[EndedTransfer]:
        """Handles ends of transfers, as reported by the store; returns those of what `load` and `save` were given.

        An end may be reported again if it has crossed with a cancellation.
        """
        return ends

    @abstractmethod
    def clear(self) -> None:
        """Makes everything that this worker has computed unfindable: a failed step may have written anywhere.

        Transfers without a key that have not been taken yet are dropped; the others are canceled one by one after
        this call. The recorder is not told: the caller that clears all tiers does that.
        """

    def hashes(self) -> list[bytes]:
        """Hashes of the first group's blocks in this worker's own memory, in no particular order."""
        return []

    def check(self) -> None:
        """Verifies that no block is lost.

        Raises:
            RuntimeError: a block is lost or used twice.
        """
        return
