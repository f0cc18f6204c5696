"""Keeps the index in sync with one worker's KV cache, from the worker's own events."""

from __future__ import annotations

import asyncio
import functools
import logging
import operator
from collections.abc import AsyncIterator, Callable, Sequence

import grpc

from quire.rpc.status import from_rpc_error
from quire.v1 import engine_pb2
from router.index.block_index import SLICE
from router.index.prefix_index import PrefixIndex, WorkerBlocks

logger = logging.getLogger(__name__)

Subscribe = Callable[[engine_pb2.SubscribeKvEventsRequest], AsyncIterator[engine_pb2.SubscribeKvEventsResponse]]

_RETRY_SECONDS = 0.5


class Tally:
    """Running digest of what one cache tier should hold; see CacheDigest."""

    __slots__ = ("keys_xor", "num_blocks")

    def __init__(self) -> None:
        self.num_blocks = 0
        self.keys_xor = 0

    def change(self, keys: Sequence[int], sign: int) -> None:
        """Adds (sign 1) or removes (sign -1) blocks."""
        self.num_blocks += sign * len(keys)
        self.keys_xor = functools.reduce(operator.xor, keys, self.keys_xor)

    def agrees(self, digest: engine_pb2.CacheDigest) -> bool:
        """Whether the worker's digest is the same."""
        return digest.num_blocks == self.num_blocks and digest.keys_xor == self.keys_xor


class _OutOfStep(Exception):
    """What the index holds for the worker cannot be right; the message says why."""


class KvFeed:
    """Follows one worker's cache events while `run` runs, across the worker's restarts.

    Every batch carries its epoch, its sequence number and a digest of what must be cached after it. When any of them
    does not fit, everything known of the worker is dropped, and a snapshot is requested.
    """

    def __init__(self, name: str, index: PrefixIndex, on_out_of_step: Callable[[], None]) -> None:
        """
        Args:
            name: the worker's name in logs.
            on_out_of_step: called each time the events do not fit, to count it.
        """
        self._name = name
        self._index = index
        self._on_out_of_step = on_out_of_step
        self._epoch = ""
        self._sequence = 0
        self._in_snapshot = False
        self._wants_snapshot = False
        self._stream: asyncio.Timeout | None = None  # around the subscription, so that `_renew` can end it
        index.on_refined.append(self._renew)
        self._begin()

    def _begin(self) -> None:
        self.blocks: WorkerBlocks = self._index.join()
        self._device, self._host = Tally(), Tally()

    def close(self) -> None:
        """Takes the worker out of the index."""
        self._index.on_refined.remove(self._renew)
        self._index.leave(self.blocks)

    async def run(self, subscribe: Subscribe) -> None:
        """Subscribes to the worker's events, and again whenever the stream breaks."""
        trouble = ""
        while True:
            if self._wants_snapshot:
                self._epoch, self._in_snapshot, self._wants_snapshot = "", False, False
            request = engine_pb2.SubscribeKvEventsRequest(
                from_sequence=self._sequence + 1 if self._epoch else 0, epoch=self._epoch
            )
            try:
                async with asyncio.timeout(None) as self._stream:
                    async for batch in subscribe(request):
                        trouble = ""
                        await self._take(batch)
                reason = "it ended the stream"
            except TimeoutError:
                reason = "a snapshot is needed"
            except _OutOfStep as error:
                self._on_out_of_step()
                logger.warning("cache events of worker %s: %s; asking for a snapshot", self._name, error)
                self._wants_snapshot, reason = True, str(error)
            except grpc.aio.AioRpcError as error:
                reason = from_rpc_error(error).message
            self._stream = None
            if reason != trouble:
                trouble = reason
                logger.debug("cache events of worker %s: %s", self._name, reason)
            await asyncio.sleep(_RETRY_SECONDS)

    def _renew(self) -> None:
        """Requests a snapshot: at once, or once a broken stream is back."""
        self._wants_snapshot = True
        if self._stream is not None:
            self._stream.reschedule(0.0)
            self._stream = None

    async def _take(self, batch: engine_pb2.SubscribeKvEventsResponse) -> None:
        if batch.is_snapshot:
            if not self._in_snapshot:
                self._index.leave(self.blocks)
                self._begin()
        elif batch.epoch != self._epoch:
            raise _OutOfStep("it has restarted")
        elif (batch.first_sequence or batch.sequence) != self._sequence + 1:
            raise _OutOfStep(f"batch {batch.first_sequence or batch.sequence} came after {self._sequence}")
        for event in batch.events:
            await self._apply(event)
        self._in_snapshot = batch.snapshot_continues
        if self._in_snapshot:
            return
        self._epoch, self._sequence = batch.epoch, batch.sequence
        if not (self._device.agrees(batch.device) and self._host.agrees(batch.host)):
            raise _OutOfStep(f"after batch {batch.sequence}, its blocks differ from those that its events reported")

    async def _apply(self, event: engine_pb2.KvEvent) -> None:
        kind = event.WhichOneof("event")
        if kind == "cleared":
            self._index.leave(self.blocks)
            self._begin()
            return
        change = event.stored if kind == "stored" else event.removed
        keys = list(change.block_keys)
        on_host = change.tier == engine_pb2.CACHE_TIER_HOST
        tally, sign = self._host if on_host else self._device, 1 if kind == "stored" else -1
        apply = self._index.store if kind == "stored" else self._index.remove
        for start in range(0, len(keys), SLICE):
            some = keys[start : start + SLICE]
            if len(keys) > SLICE:
                async with self._index.turn:  # one feed at a time; many together would block the event loop
                    await asyncio.sleep(0)
            tally.change(some, sign)
            apply(self.blocks, some, on_host)
