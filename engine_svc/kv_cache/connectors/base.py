"""The contract of a connector: another place where KV blocks are kept, above the device's cache.

It has two halves. The one here decides, beside the scheduler: which blocks leave, which of a prompt's come back, and
what becomes of its index. The other half, a `BlockStore` on each rank (engine_svc/block_stores), moves the blocks. What
the first wants goes down with a step's plan (`Transfers`), what has ended comes up with its result (`EndedTransfer`).

Blocks leave in one of two ways: `keep` takes what the device is about to forget, `save` what has just been computed.
They come in one of two ways too, as `find` says: before the step computes, or some time later. For the latter a
sequence waits, without a slot and without holding others up, and goes on with as many of the blocks as have come. Who
waits, until when, and who holds the blocks meanwhile, is the same for all connectors: see kv_cache/transfers.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from engine_svc.kv_cache.block_table import BlockTable
from engine_svc.kv_cache.events import TierRecorder
from engine_svc.plan import EndedTransfer, Transfers


@dataclass(frozen=True)
class Found:
    """Blocks that a connector brings, by hash, and when.

    Attributes:
        wait_seconds: None where they are there before the step computes. Else the sequence waits for them, so long at
            most; what has not come by then it computes itself.
    """

    hashes: Sequence[bytes] = ()
    wait_seconds: float | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether the sequence waits for them."""
        return self.wait_seconds is not None


NOTHING = Found()


class KvConnector(ABC):
    """Called in the engine's thread, between steps; never waits for anything.

    A transfer that no step ends has a key. From `load` or `save` on it is under way until the store reports its end,
    once, and its blocks are the connector's: nobody else writes to those of a save, nor reads or writes those of a
    load. One that is cancelled ends too, soon, whether or not the store has heard of it.

    Attributes:
        recorder: tells what this worker's own memory keeps; None where nothing is kept there.
    """

    recorder: TierRecorder | None = None

    @property
    def num_blocks(self) -> int:
        """Blocks that this worker's own memory has for it."""
        return 0

    @property
    def num_used_blocks(self) -> int:
        """Those of them that keep something."""
        return 0

    @abstractmethod
    def find(self, table: BlockTable, hashes: Sequence[bytes]) -> Found:
        """The longest prefix of `hashes` that it can bring, or is worth bringing. Changes nothing.

        It may promise what turns out not to come: then the load ends with fewer blocks.

        Args:
            table: of the sequence that asks; what must be known of its request is to be put there.
            hashes: of the blocks that follow those found on the device; not empty.
        """

    def pin(self, hashes: Sequence[bytes]) -> None:
        """These, just found, are about to be loaded: what `keep` is told meanwhile must not displace them."""
        return

    @abstractmethod
    def load(self, key: int, hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Brings blocks to the device, with the transfers of the next step.

        Args:
            key: of the transfer; 0 where `find` promised them before the step computes.
        """

    def keep(self, block_hash: bytes, block_id: int) -> None:
        """The last moment of a cached block: the next step overwrites it. A copy runs before that."""
        return

    def wants(self, hashes: Sequence[bytes]) -> Sequence[int]:
        """Which of these blocks, just computed, it is to `save`: their places in the list."""
        return ()

    def save(self, key: int, hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Takes blocks that it wanted away, with the transfers of the next step and as long as it takes."""
        raise NotImplementedError

    def cancel(self, key: int) -> None:
        """Nobody waits for this transfer any more. It still ends."""
        raise NotImplementedError

    @abstractmethod
    def take_transfers(self) -> Transfers:
        """What the next step begins with; each thing once."""

    def ended(self, end: EndedTransfer) -> None:
        """The store has reported the end of a transfer."""
        return

    @abstractmethod
    def clear(self) -> None:
        """Nothing that this worker has computed may be found any more: a failed step may have written anywhere.

        What has no key and has not been handed over is dropped; the rest is cancelled one by one after this. The
        recorder hears of it from whoever clears all tiers.
        """

    def hashes(self) -> list[bytes]:
        """Of all blocks in this worker's own memory, in no order."""
        return []

    def check(self) -> None:
        """Proves that nothing is lost.

        Raises:
            RuntimeError: it is.
        """
        return
