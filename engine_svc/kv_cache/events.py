"""Events about changes of the prefix cache, for subscribers that keep an index of it.

`EventRecorder` collects events in the engine's thread. Once per step they are taken and appended, in the event loop's
thread, to the `EventLog`, which numbers them and keeps the last batches for subscribers. Events identify blocks by
their keys (quire/block_hash.py); the caches themselves compare whole hashes.
"""

from __future__ import annotations

import asyncio
import enum
import uuid
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from quire.block_hash import block_key

DEFAULT_KEPT_BATCHES = 4096


class Tier(enum.Enum):
    """The memory that a cached block is in. A block may be in both."""

    DEVICE = "device"
    HOST = "host"


@dataclass(frozen=True)
class BlockContent:
    """What a block holds the keys and values of."""

    token_ids: Sequence[int]
    adapter: str  # its revision; empty for none
    cache_salt: str


@dataclass(frozen=True)
class BlocksStored:
    """Blocks that became findable.

    On the device each block is the child of the one before it, and `parent` is the key of the block before the first,
    or 0 at the start of a sequence. In the host tier the blocks have no order, and `parent` is 0.
    """

    tier: Tier
    keys: list[int]
    parent: int
    contents: list[BlockContent] = field(default_factory=list)  # of each block, if they are recorded


@dataclass(frozen=True)
class BlocksRemoved:
    """Blocks that were removed from a tier."""

    tier: Tier
    keys: list[int]


@dataclass(frozen=True)
class CacheCleared:
    """All blocks of all tiers were removed."""


KvEvent = BlocksStored | BlocksRemoved | CacheCleared


@dataclass(frozen=True)
class Digest:
    """Summary of one tier: the number of its blocks, and their keys combined by exclusive or."""

    num_blocks: int = 0
    keys_xor: int = 0


Digests = dict[Tier, Digest]


@dataclass(frozen=True)
class Changes:
    """Events in order, and digests of what is cached after them. Events of one tier come before those of the other."""

    events: list[KvEvent]
    digests: Digests


@dataclass(frozen=True)
class CacheContents:
    """Everything that is cached at one moment, as hashes in no particular order."""

    hashes: dict[Tier, list[bytes]]
    digests: Digests


class TierRecorder:
    """Collects the events of one tier and keeps its digest; adjacent events are merged where possible.

    A hash must be stored before it is removed, and removed before it is stored again.
    """

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self.clear()

    def clear(self) -> None:
        """Starts over with an empty tier."""
        self._events: list[BlocksStored | BlocksRemoved] = []
        self._last_stored = b""
        self._num_blocks = self._keys_xor = 0

    def stored(self, block_hash: bytes, parent: bytes | None = None, content: BlockContent | None = None) -> None:
        """Records that a block became findable.

        Args:
            parent: hash of the block before it, empty for the first of a sequence; None means a tier without order.
            content: given for all blocks or for none.
        """
        key = block_key(block_hash)
        self._num_blocks += 1
        self._keys_xor ^= key
        last = self._events[-1] if self._events else None
        if isinstance(last, BlocksStored) and (parent is None or (parent and parent == self._last_stored)):
            last.keys.append(key)
        else:
            last = BlocksStored(self._tier, [key], block_key(parent) if parent else 0)
            self._events.append(last)
        if content is not None:
            last.contents.append(content)
        self._last_stored = block_hash

    def removed(self, block_hash: bytes) -> None:
        """Records that a block was removed."""
        key = block_key(block_hash)
        self._num_blocks -= 1
        self._keys_xor ^= key
        last = self._events[-1] if self._events else None
        if isinstance(last, BlocksRemoved):
            last.keys.append(key)
        else:
            self._events.append(BlocksRemoved(self._tier, [key]))

    def digest(self) -> Digest:
        """Digest of what is cached now."""
        return Digest(self._num_blocks, self._keys_xor)

    def take(self) -> list[BlocksStored | BlocksRemoved]:
        """Returns what was recorded since the last call."""
        events, self._events = self._events, []
        return events


class EventRecorder:
    """The recorders of both tiers, and events that concern both."""

    def __init__(self, host: TierRecorder | None = None) -> None:
        """
        Args:
            host: recorder of the host tier, if there is one.
        """
        self.device = TierRecorder(Tier.DEVICE)
        self.host = host or TierRecorder(Tier.HOST)
        self._was_cleared = False

    def cleared(self) -> None:
        """Records that all blocks are gone, and drops what was recorded before."""
        self.device.clear()
        self.host.clear()
        self._was_cleared = True

    def digests(self) -> Digests:
        """Digest of each tier as of now."""
        return {Tier.DEVICE: self.device.digest(), Tier.HOST: self.host.digest()}

    def take(self) -> Changes | None:
        """Returns what was recorded since the last call; None if nothing was."""
        events: list[KvEvent] = [CacheCleared()] if self._was_cleared else []
        self._was_cleared = False
        events += self.device.take()
        events += self.host.take()
        return Changes(events, self.digests()) if events else None


@dataclass(frozen=True)
class EventBatch:
    """Changes with their sequence number."""

    sequence: int
    changes: Changes


class EventLog:
    """The last batches, numbered from 1 without gaps. Used from one event loop.

    Attributes:
        epoch: identifies this log; sequence numbers are only comparable within one epoch.
        last_sequence: number of the last batch; 0 before the first.
    """

    def __init__(self, kept_batches: int = DEFAULT_KEPT_BATCHES) -> None:
        self._batches: deque[EventBatch] = deque(maxlen=kept_batches)
        self._changed = asyncio.Event()
        self.epoch = uuid.uuid4().hex
        self.last_sequence = 0

    def append(self, changes: Changes) -> None:
        """Numbers a batch and wakes the subscribers."""
        self.last_sequence += 1
        self._batches.append(EventBatch(self.last_sequence, changes))
        self._changed.set()
        self._changed = asyncio.Event()

    def keeps(self, sequence: int) -> bool:
        """Whether a subscriber can continue from `sequence` without a snapshot."""
        first = self._batches[0].sequence if self._batches else self.last_sequence + 1
        return first <= sequence <= self.last_sequence + 1

    def since(self, sequence: int) -> list[EventBatch]:
        """The batches from `sequence` on. The caller has checked `keeps(sequence)`."""
        wanted = self.last_sequence + 1 - sequence
        return list(self._batches)[-wanted:] if wanted > 0 else []

    async def wait(self, sequence: int) -> None:
        """Waits until there is a batch numbered `sequence` or higher."""
        while self.last_sequence < sequence:
            await self._changed.wait()
