"""A second tier of the prefix cache, in host memory, for blocks and saved states that the device's cache evicts.

What is about to be overwritten is copied out first, and copied back when a prompt needs it. That serves preempted
sequences (whose blocks are cached) as well as prefixes that return late. The copies finish before the step computes, so
that no sequence waits for them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Sequence

from engine_svc.kv_cache.block_name import STATES, BlockName
from engine_svc.kv_cache.connectors.base import KvConnector
from engine_svc.kv_cache.events import Tier, TierRecorder
from engine_svc.plan import NO_TRANSFERS, BlockTransfer, Transfers


class _Places:
    """Places of one size in host memory, and what they hold, least recently used first."""

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers
        self._free = list(reversed(numbers))
        self.kept: OrderedDict[BlockName, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._numbers)

    def take(self, pinned: Collection[BlockName]) -> tuple[int | None, BlockName | None]:
        """A place that holds nothing any more, and the name of what it held; None if all hold something pinned."""
        if self._free:
            return self._free.pop(), None
        oldest = next((name for name in self.kept if name not in pinned), None)
        return (None, None) if oldest is None else (self.kept.pop(oldest), oldest)

    def clear(self) -> None:
        """Forgets everything."""
        self._free.extend(self.kept.values())
        self.kept.clear()

    def check(self) -> None:
        """See KvConnector.check."""
        if sorted((*self._free, *self.kept.values())) != list(self._numbers):
            raise RuntimeError("places of the host tier are lost or used twice")


class HostTier(KvConnector):
    """Keeps blocks and states by name, and the copies that the next step begins with.

    All copies out of the device run before all copies in.
    """

    def __init__(self, num_blocks: int, num_snapshots: int = 0) -> None:
        self.recorder = self._recorder = TierRecorder(Tier.HOST)
        self._blocks = _Places(range(num_blocks))
        self._states = _Places(range(num_blocks, num_blocks + num_snapshots))
        self._pinned: set[BlockName] = set()
        self._copies_out: dict[int, int] = {}  # place → number on the device; a later copy replaces an earlier one
        self._copies_in: dict[int, int] = {}  # number on the device → place

    @property
    def num_blocks(self) -> int:
        """See KvConnector.num_blocks."""
        return len(self._blocks)

    @property
    def num_used_blocks(self) -> int:
        """See KvConnector.num_used_blocks."""
        return len(self._blocks.kept)

    @property
    def memory(self) -> KvConnector:
        """See KvConnector.memory."""
        return self

    def _of(self, name: BlockName) -> _Places:
        return self._states if name.group == STATES else self._blocks

    def has(self, name: BlockName) -> bool:
        """See KvConnector.has."""
        return name in self._of(name).kept

    def keep(self, name: BlockName, block_id: int) -> None:
        """Copies a device block to the host, unless it is there already or there is no room."""
        places = self._of(name)
        if name in places.kept:
            places.kept.move_to_end(name)
            return
        # What is itself still to be loaded has nothing to copy yet.
        if block_id in self._copies_in:
            return
        place, displaced = places.take(self._pinned)
        if displaced is not None and not displaced.group:
            self._recorder.removed(displaced.block_hash)
        if place is not None:
            places.kept[name] = place
            self._copies_out[place] = block_id
            if not name.group:
                self._recorder.stored(name.block_hash)

    def pin(self, names: Sequence[BlockName]) -> None:
        """Keeps these blocks until the next step has begun."""
        self._pinned.update(names)

    def load(self, key: int, names: Sequence[BlockName], block_ids: Sequence[int]) -> None:
        """Copies pinned blocks to the device; they stay in host memory too."""
        for name, block_id in zip(names, block_ids, strict=True):
            kept = self._of(name).kept
            kept.move_to_end(name)
            self._copies_in[block_id] = kept[name]

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
        self._blocks.clear()
        self._states.clear()
        self.take_transfers()

    def hashes(self) -> list[bytes]:
        """See KvConnector.hashes. Iterating in OrderedDict order takes forty times as long."""
        return [name.block_hash for name in dict.keys(self._blocks.kept) if not name.group]

    def check(self) -> None:
        """See KvConnector.check."""
        self._blocks.check()
        self._states.check()
