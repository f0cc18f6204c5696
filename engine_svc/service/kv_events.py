"""Prefix cache events for subscribers: a snapshot if needed, then every change."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence

from engine_svc.kv_cache.events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheContents,
    Digests,
    EventBatch,
    KvEvent,
    Tier,
)
from engine_svc.worker import EngineWorker
from quire.block_hash import block_key
from quire.v1 import engine_pb2

# Most keys in one message. Creating a message of this size blocks the event loop for 15 ms.
SNAPSHOT_KEYS = 100_000
# Interval between messages, in which changes are combined, unless more changes wait than fit one message. With a
# message per step, a router of a thousand workers would do little else than read them; the delay costs it no hits.
GAP_SECONDS = 0.25

_TIERS = {Tier.DEVICE: engine_pb2.CACHE_TIER_DEVICE, Tier.HOST: engine_pb2.CACHE_TIER_HOST}


async def kv_events(
    worker: EngineWorker, from_sequence: int, epoch: str
) -> AsyncIterator[engine_pb2.SubscribeKvEventsResponse]:
    """The messages of one subscription, until the subscriber leaves; see SubscribeKvEvents in engine.proto.

    Args:
        from_sequence: first sequence number wanted; 0 for a snapshot.
        epoch: epoch that the number belongs to; a snapshot is sent if it is not the current one.

    Raises:
        Unavailable: the engine is not built yet, or has died.
    """
    block_size = worker.info.block_size
    log = worker.loop.kv_events
    wanted = from_sequence if epoch == log.epoch else 0
    while True:
        if wanted and log.keeps(wanted):
            waiting = log.since(wanted)
            batches = _some(waiting)
            if batches:
                yield _changes(batches, log.epoch, block_size)
                wanted = batches[-1].sequence + 1
                if len(batches) == len(waiting):
                    await asyncio.sleep(GAP_SECONDS)
                continue
        else:
            sequence, contents = await worker.loop.cache_contents()
            for message in _snapshot(contents, block_size):
                message.sequence, message.epoch = sequence, log.epoch
                yield message
            wanted = sequence + 1
        await log.wait(wanted)


def _some(batches: Sequence[EventBatch]) -> Sequence[EventBatch]:
    """The first batches, as many as one message may have; at least one if there are any."""
    room = SNAPSHOT_KEYS
    for number, batch in enumerate(batches):
        room -= sum(0 if isinstance(event, CacheCleared) else len(event.keys) for event in batch.changes.events)
        if room < 0:
            return batches[: max(1, number)]
    return batches


def _changes(batches: Sequence[EventBatch], epoch: str, block_size: int) -> engine_pb2.SubscribeKvEventsResponse:
    """One message with the changes of all batches."""
    last = batches[-1]
    message = engine_pb2.SubscribeKvEventsResponse(sequence=last.sequence, epoch=epoch)
    if len(batches) > 1:
        message.first_sequence = batches[0].sequence
    for batch in batches:
        message.events.extend(_event(event, block_size) for event in batch.changes.events)
    _add_digests(message, last.changes.digests)
    return message


def _snapshot(contents: CacheContents, block_size: int) -> Iterator[engine_pb2.SubscribeKvEventsResponse]:
    """Yields messages with the keys, and a last one with the digests."""
    pieces = [
        (tier, hashes[start : start + SNAPSHOT_KEYS])
        for tier, hashes in contents.hashes.items()
        for start in range(0, len(hashes), SNAPSHOT_KEYS)
    ]
    for tier, hashes in pieces:
        stored = BlocksStored(tier, [block_key(block_hash) for block_hash in hashes], parent=0)
        yield engine_pb2.SubscribeKvEventsResponse(
            is_snapshot=True, snapshot_continues=True, events=[_event(stored, block_size)]
        )
    message = engine_pb2.SubscribeKvEventsResponse(is_snapshot=True)
    _add_digests(message, contents.digests)
    yield message


def _event(event: KvEvent, block_size: int) -> engine_pb2.KvEvent:
    if isinstance(event, BlocksStored):
        stored = engine_pb2.KvBlocksStored(
            block_keys=event.keys, parent_block_key=event.parent, block_size=block_size, tier=_TIERS[event.tier]
        )
        return engine_pb2.KvEvent(stored=stored)
    if isinstance(event, BlocksRemoved):
        removed = engine_pb2.KvBlocksRemoved(block_keys=event.keys, tier=_TIERS[event.tier])
        return engine_pb2.KvEvent(removed=removed)
    return engine_pb2.KvEvent(cleared=engine_pb2.KvCacheCleared())


def _add_digests(message: engine_pb2.SubscribeKvEventsResponse, digests: Digests) -> None:
    for tier, field in ((Tier.DEVICE, message.device), (Tier.HOST, message.host)):
        digest = engine_pb2.CacheDigest(num_blocks=digests[tier].num_blocks, keys_xor=digests[tier].keys_xor)
        field.CopyFrom(digest)
