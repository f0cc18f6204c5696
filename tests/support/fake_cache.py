"""A prefix cache without contents: the events that a fake engine sends about it, and ways to make it lie."""

from __future__ import annotations

import asyncio
import functools
import operator
import uuid
from collections.abc import AsyncIterator, Sequence

from quire.v1 import engine_pb2

DEVICE, HOST = engine_pb2.CACHE_TIER_DEVICE, engine_pb2.CACHE_TIER_HOST


class FakeCache:
    """Keys by tier, and the batches that led there."""

    def __init__(self) -> None:
        self._streams = 0
        self._changed = asyncio.Event()
        self.restart()
        self.subscriptions: list[engine_pb2.SubscribeKvEventsRequest] = []

    def restart(self) -> None:
        """Acts like a new process: nothing cached, another epoch, sequence numbers from the start, streams ended."""
        self.end_streams()
        self.epoch = uuid.uuid4().hex
        self.keys: dict[int, dict[int, None]] = {DEVICE: {}, HOST: {}}
        self.batches: list[engine_pb2.SubscribeKvEventsResponse] = []

    def end_streams(self) -> None:
        """Ends all streams; subscribers must reconnect."""
        self._streams += 1
        self._wake()

    def store(self, keys: Sequence[int], tier: int = DEVICE) -> None:
        new = [key for key in keys if key not in self.keys[tier]]
        self.keys[tier].update(dict.fromkeys(new))
        stored = engine_pb2.KvBlocksStored(block_keys=new, block_size=16, tier=tier)
        if new:
            self._append(engine_pb2.KvEvent(stored=stored))

    def remove(self, keys: Sequence[int], tier: int = DEVICE) -> None:
        for key in keys:
            del self.keys[tier][key]
        self._append(engine_pb2.KvEvent(removed=engine_pb2.KvBlocksRemoved(block_keys=keys, tier=tier)))

    def clear(self) -> None:
        self.keys = {DEVICE: {}, HOST: {}}
        self._append(engine_pb2.KvEvent(cleared=engine_pb2.KvCacheCleared()))

    def forget_silently(self, keys: Sequence[int]) -> None:
        """Removes blocks without an event, as a bug might."""
        for key in keys:
            del self.keys[DEVICE][key]

    def lose_batch(self) -> None:
        """Skips a sequence number before the next batch, as if a batch had been lost."""
        self.batches.append(engine_pb2.SubscribeKvEventsResponse(sequence=len(self.batches) + 1))

    def merge_batches(self) -> None:
        """Merges all batches so far into one."""
        merged = engine_pb2.SubscribeKvEventsResponse()
        for batch in self.batches:
            merged.MergeFrom(batch)
        merged.first_sequence = 1
        merged.device.CopyFrom(self.batches[-1].device)
        merged.host.CopyFrom(self.batches[-1].host)
        self.batches = [*(engine_pb2.SubscribeKvEventsResponse() for _ in self.batches[1:]), merged]

    def covered(self, keys: Sequence[int]) -> int:
        """Leading blocks that are cached in any tier."""
        for count, key in enumerate(keys):
            if key not in self.keys[DEVICE] and key not in self.keys[HOST]:
                return count
        return len(keys)

    def snapshot(self) -> engine_pb2.SubscribeKvEventsResponse:
        batch = self._batch()
        batch.is_snapshot = True
        for tier, keys in self.keys.items():
            batch.events.add(stored=engine_pb2.KvBlocksStored(block_keys=list(keys), block_size=16, tier=tier))
        return batch

    async def subscribe(
        self, request: engine_pb2.SubscribeKvEventsRequest
    ) -> AsyncIterator[engine_pb2.SubscribeKvEventsResponse]:
        """Yields batches until `end_streams`."""
        self.subscriptions.append(request)
        streams, wanted = self._streams, request.from_sequence
        if request.epoch != self.epoch or not 0 < wanted <= len(self.batches) + 1:
            snapshot = self.snapshot()
            yield snapshot
            wanted = snapshot.sequence + 1
        while self._streams == streams:
            changed = self._changed
            while wanted <= len(self.batches):
                batch = self.batches[wanted - 1]
                wanted += 1
                if batch.epoch:
                    yield batch
            await changed.wait()

    def _append(self, event: engine_pb2.KvEvent) -> None:
        batch = self._batch()
        batch.sequence += 1
        batch.events.append(event)
        self.batches.append(batch)
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _batch(self) -> engine_pb2.SubscribeKvEventsResponse:
        batch = engine_pb2.SubscribeKvEventsResponse(sequence=len(self.batches), epoch=self.epoch)
        for digest, tier in ((batch.device, DEVICE), (batch.host, HOST)):
            digest.num_blocks = len(self.keys[tier])
            digest.keys_xor = functools.reduce(operator.xor, self.keys[tier], 0)
        return batch
