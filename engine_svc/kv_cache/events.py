"""What changed in the prefix cache, told to whoever keeps an index of it.

`EventRecorder` collects in the engine's thread; once per step what it has is taken and appended, in the event loop's
thread, to the `EventLog`, which numbers it and keeps the last batches for subscribers. Blocks are named by their keys
(quire/block_hash.py) here; the caches themselves compare whole hashes.
"""

from __future__ import annotations

import asyncio
import enum
import uuid
from collections import deque
from dataclasses import dataclass

from quire.block_hash import block_key

DEFAULT_KEPT_BATCHES = 4096


class Tier(enum.Enum):
    """Where a cached block lies. One may lie in both."""

    DEVICE = "device"
    HOST = "host"


@dataclass(frozen=True)
class BlocksStored:
    """Blocks that became findable.

    On the device each is the child of the one before it, and `parent` is the key of the block before the first, 0 at a
    sequence's start. In the host tier they are in no order, and `parent` is 0.
    """

    tier: Tier
    keys: list[int]
    parent: int


@dataclass(frozen=True)
class BlocksRemoved:
    """Blocks that are gone from a tier."""

    tier: Tier
    keys: list[int]


@dataclass(frozen=True)
class CacheCleared:
    """All blocks of all tiers are gone."""


KvEvent = BlocksStored | BlocksRemoved | CacheCleared


@dataclass(frozen=True)
class Digest:
    """What one tier holds: how many blocks, and their keys combined by exclusive or."""

    num_blocks: int = 0
    keys_xor: int = 0


Digests = dict[Tier, Digest]


@dataclass(frozen=True)
class Changes:
    """Events in order, and what is cached after them. Tiers are independent of each other: one comes first."""

    events: list[KvEvent]
    digests: Digests


@dataclass(frozen=True)
class CacheContents:
    """All that is cached at one moment, by hash and in no order."""

    hashes: dict[Tier, list[bytes]]
    digests: Digests


class EventRecorder:
    """Collects events and keeps the digests; neighbours that belong together become one event.

    A hash must be stored once in a tier before it is removed there, and removed before it is stored again.
    """

    def __init__(self) -> None:
        self._was_cleared = False
        self._start()

    def _start(self) -> None:
        self._events: dict[Tier, list[BlocksStored | BlocksRemoved]] = {tier: [] for tier in Tier}
        self._counts = dict.fromkeys(Tier, 0)
        self._xors = dict.fromkeys(Tier, 0)

    def stored(self, tier: Tier, block_hash: bytes, parent: bytes | None = None) -> None:
        """A block became findable.

        Args:
            parent: hash of the block before it, empty for the first of a sequence; None in the host tier.
        """
        key = block_key(block_hash)
        self._counts[tier] += 1
        self._xors[tier] ^= key
        events = self._events[tier]
        last = events[-1] if events else None
        before = block_key(parent) if parent else 0
        if isinstance(last, BlocksStored) and (parent is None or (parent and last.keys[-1] == before)):
            last.keys.append(key)
        else:
            events.append(BlocksStored(tier, [key], before))

    def removed(self, tier: Tier, block_hash: bytes) -> None:
        """A block is gone."""
        key = block_key(block_hash)
        self._counts[tier] -= 1
        self._xors[tier] ^= key
        events = self._events[tier]
        last = events[-1] if events else None
        if isinstance(last, BlocksRemoved):
            last.keys.append(key)
        else:
            events.append(BlocksRemoved(tier, [key]))

    def cleared(self) -> None:
        """All blocks are gone; what was recorded before does not matter any more."""
        self._was_cleared = True
        self._start()

    def digests(self) -> Digests:
        """Of what is cached now."""
        return {tier: Digest(self._counts[tier], self._xors[tier]) for tier in Tier}

    def take(self) -> Changes | None:
        """What was recorded since the last call; None if nothing was."""
        events: list[KvEvent] = [CacheCleared()] if self._was_cleared else []
        for tier, recorded in self._events.items():
            if recorded:
                events += recorded
                self._events[tier] = []
        self._was_cleared = False
        return Changes(events, self.digests()) if events else None


@dataclass(frozen=True)
class EventBatch:
    """Changes with their number."""

    sequence: int
    changes: Changes


class EventLog:
    """The last batches, numbered from 1 without gaps. Used from one event loop.

    Attributes:
        epoch: what the numbers belong to; another log has another one.
        last_sequence: of the last batch.
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
        """Whether a subscriber can go on from `sequence` without a snapshot."""
        first = self._batches[0].sequence if self._batches else self.last_sequence + 1
        return first <= sequence <= self.last_sequence + 1

    def since(self, sequence: int) -> list[EventBatch]:
        """The batches from `sequence` on, which `keeps` has confirmed."""
        wanted = self.last_sequence + 1 - sequence
        return list(self._batches)[-wanted:] if wanted > 0 else []

    async def wait(self, sequence: int) -> None:
        """Waits until there is a batch numbered `sequence` or higher."""
        while self.last_sequence < sequence:
            await self._changed.wait()
