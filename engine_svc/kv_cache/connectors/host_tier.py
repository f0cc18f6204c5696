"""A second tier of the prefix cache, in host memory, for blocks that the device cache evicts.

A block whose contents are about to be overwritten is copied out first, and copied back when a prompt needs it. That
serves preempted sequences (whose blocks are cached) as well as prefixes that return late. The copies finish before the
step computes, so that no sequence waits for them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from engine_svc.kv_cache.block_name import BlockName
from engine_svc.kv_cache.connectors.base import KvConnector
from engine_svc.kv_cache.events import Tier, TierRecorder
from engine_svc.plan import NO_TRANSFERS, BlockTransfer, Transfers


class HostTier(KvConnector):
    """Keeps host blocks by name, least recently used first, and the copies that the next step begins with.

    All copies out of the device run before all copies in.
    """

    def __init__(self, num_blocks: int) -> None:
        self.recorder = self._recorder = TierRecorder(Tier.HOST)
        self._num_blocks = num_blocks
        self._blocks: OrderedDict[BlockName, int] = OrderedDict()
        self._free = list(range(num_blocks - 1, -1, -1))
        self._pinned: set[BlockName] = set()
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

    def has(self, name: BlockName) -> bool:
        """See KvConnector.has."""
        return name in self._blocks

    def keep(self, name: BlockName, block_id: int) -> None:
        """Copies a device block to the host, unless it is there already or there is no room."""
        if name in self._blocks:
            self._blocks.move_to_end(name)
            return
        # A block that is itself still to be loaded has nothing to copy yet.
        if block_id in self._copies_in:
            return
        host_block = self._take()
        if host_block is not None:
            self._blocks[name] = host_block
            self._copies_out[host_block] = block_id
            if not name.group:
                self._recorder.stored(name.block_hash)

    def pin(self, names: Sequence[BlockName]) -> None:
        """Keeps these blocks until the next step has begun."""
        self._pinned.update(names)

    def load(self, key: int, names: Sequence[BlockName], block_ids: Sequence[int]) -> None:
        """Copies pinned blocks to the device; they stay in host memory too."""
        for name, block_id in zip(names, block_ids, strict=True):
            self._blocks.move_to_end(name)
            self._copies_in[block_id] = self._blocks[name]

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
        """See KvConnector.hashes. Iterating in OrderedDict order takes forty times as long."""
        return [name.block_hash for name in dict.keys(self._blocks) if not name.group]

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
        oldest = next((name for name in self._blocks if name not in self._pinned), None)
        if oldest is None:
            return None
        if not oldest.group:
            self._recorder.removed(oldest.block_hash)
        return self._blocks.pop(oldest)
