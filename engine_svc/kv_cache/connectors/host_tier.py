"""A second tier of the prefix cache, in host memory, for blocks that the device cache evicts.

A block whose contents are about to be overwritten is copied out first, and copied back when a prompt needs it. That
serves preempted sequences (whose blocks are cached) as well as prefixes that return late. The copies finish before the
step computes, so that no sequence waits for them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import takewhile

from engine_svc.kv_cache.block_table import BlockTable
from engine_svc.kv_cache.connectors.base import NOTHING, Found, KvConnector
from engine_svc.kv_cache.events import Tier, TierRecorder
from engine_svc.plan import NO_TRANSFERS, BlockTransfer, Transfers


class HostTier(KvConnector):
    """Keeps host blocks by hash, least recently used first, and the copies that the next step begins with.

    All copies out of the device run before all copies in.
    """

    def __init__(self, num_blocks: int) -> None:
        self.recorder = self._recorder = TierRecorder(Tier.HOST)
        self._num_blocks = num_blocks
        self._blocks: OrderedDict[bytes, int] = OrderedDict()
        self._free = list(range(num_blocks - 1, -1, -1))
        self._pinned: set[bytes] = set()
        self._copies_out: dict[int, int] = {}  # host block → device block; a later copy replaces an earlier one
        self._copies_in: dict[int, int] = {}  # device block → host block

    @property
    def num_blocks(self) -> int:
        """See KvConnector.num_blocks."""
        return self._num_blocks

    @property
    def num_used_blocks(self) -> int:
        """See KvConnector.num_used_blocks."""
        return len(self._blocks)

    def find(self, table: BlockTable, hashes: Sequence[bytes]) -> Found:
        """See KvConnector.find."""
        found = list(takewhile(self._blocks.__contains__, hashes))
        return Found(found) if found else NOTHING

    def keep(self, block_hash: bytes, block_id: int) -> None:
        """Copies a device block to the host, unless it is there already or there is no room."""
        if block_hash in self._blocks:
            self._blocks.move_to_end(block_hash)
            return
        # A block that is itself still to be loaded has nothing to copy yet.
        if block_id in self._copies_in:
            return
        host_block = self._take()
        if host_block is not None:
            self._blocks[block_hash] = host_block
            self._copies_out[host_block] = block_id
            self._recorder.stored(block_hash)

    def pin(self, hashes: Sequence[bytes]) -> None:
        """Keeps these blocks until the next step has begun."""
        self._pinned.update(hashes)

    def load(self, key: int, hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Copies pinned blocks to the device; they stay in host memory too."""
        for block_hash, block_id in zip(hashes, block_ids, strict=True):
            self._blocks.move_to_end(block_hash)
            self._copies_in[block_id] = self._blocks[block_hash]

    def take_transfers(self) -> Transfers:
        """See KvConnector.take_transfers."""
        if not self._copies_out and not self._copies_in and not self._pinned:
            return NO_TRANSFERS
        out, into = self._copies_out, self._copies_in
        self._copies_out, self._copies_in = {}, {}
        self._pinned.clear()
        return Transfers(
            saves=[BlockTransfer(list(out.values()), list(out))] if out else [],
            loads=[BlockTransfer(list(into), list(into.values()))] if into else [],
        )

    def clear(self) -> None:
        """See KvConnector.clear."""
        self._free.extend(self._blocks.values())
        self._blocks.clear()
        self.take_transfers()

    def hashes(self) -> list[bytes]:
        """Hashes of all blocks, in no particular order: iterating in OrderedDict order takes forty times as long."""
        return list(dict.keys(self._blocks))

    def check(self) -> None:
        """Verifies that no block is lost or used twice.

        Raises:
            RuntimeError: one is.
        """
        if sorted((*self._free, *self._blocks.values())) != list(range(self.num_blocks)):
            raise RuntimeError("blocks of the host tier are lost or used twice")

    def _take(self) -> int | None:
        if self._free:
            return self._free.pop()
        oldest = next((block_hash for block_hash in self._blocks if block_hash not in self._pinned), None)
        if oldest is None:
            return None
        self._recorder.removed(oldest)
        return self._blocks.pop(oldest)
