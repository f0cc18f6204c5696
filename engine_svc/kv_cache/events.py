"""What changed in the prefix cache, told to whoever keeps an index of it.

`EventRecorder` collects in the engine's thread; once per step what it has is taken and appended, in the event loop's
thread, to the `EventLog`, which numbers it and keeps the last batches for subscribers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

DEFAULT_KEPT_BATCHES = 4096


@dataclass(frozen=True)
class BlocksStored:
    """Blocks that became findable, each the child of the one before it; `parent` is b"" at a sequence's start."""

    block_hashes: list[bytes]
    parent: bytes
    block_size: int


@dataclass(frozen=True)
class BlocksRemoved:
    """Blocks that are gone."""

    block_hashes: list[bytes] = field(default_factory=list)


@dataclass(frozen=True)
class CacheCleared:
    """All blocks are gone."""


KvEvent = BlocksStored | BlocksRemoved | CacheCleared


class EventRecorder:
    """Collects events; neighbours that belong together become one."""

    def __init__(self) -> None:
        self._events: list[KvEvent] = []

    def stored(self, block_hash: bytes, parent: bytes, block_size: int) -> None:
        """A block became findable."""
        last = self._events[-1] if self._events else None
        if isinstance(last, BlocksStored) and parent and last.block_hashes[-1] == parent:
            last.block_hashes.append(block_hash)
        else:
            self._events.append(BlocksStored([block_hash], parent, block_size))

    def removed(self, block_hash: bytes) -> None:
        """A block is gone."""
        last = self._events[-1] if self._events else None
        if isinstance(last, BlocksRemoved):
            last.block_hashes.append(block_hash)
        else:
            self._events.append(BlocksRemoved([block_hash]))

    def cleared(self) -> None:
        """All blocks are gone; what was recorded before does not matter any more."""
        self._events = [CacheCleared()]

    def take(self) -> list[KvEvent]:
        """What was recorded since the last call."""
        events, self._events = self._events, []
        return events


@dataclass(frozen=True)
class EventBatch:
    """Events with their number; a snapshot's number is that of the last batch which it includes."""

    sequence: int
    events: list[KvEvent]
    is_snapshot: bool = False


class EventLog:
    """The last batches, numbered from 1 without gaps. Used from one event loop."""

    def __init__(self, kept_batches: int = DEFAULT_KEPT_BATCHES) -> None:
        self._batches: deque[EventBatch] = deque(maxlen=kept_batches)
        self._changed = asyncio.Event()
        self.last_sequence = 0

    def append(self, events: list[KvEvent]) -> None:
        """Numbers a batch and wakes the subscribers."""
        self.last_sequence += 1
        self._batches.append(EventBatch(self.last_sequence, events))
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
