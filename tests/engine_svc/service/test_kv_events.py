"""Prefix cache events sent to a subscriber over a real socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import reduce
from operator import xor

import pytest

from engine_svc.kv_cache.events import CacheContents, EventLog, Tier
from engine_svc.service import kv_events
from quire.block_hash import block_key, block_keys
from quire.v1 import engine_pb2
from tests.support.engine_client import TIMEOUT, generate, generation
from tests.support.engine_server import RunningEngine, running_engine
from tests.support.fake_executor import FakeExecutor

Response = engine_pb2.SubscribeKvEventsResponse
HOST_BLOCKS = 100


def subscribe(engine: RunningEngine, start: int, epoch: str = "") -> AsyncIterator[Response]:
    request = engine_pb2.SubscribeKvEventsRequest(from_sequence=start, epoch=epoch)
    call: AsyncIterator[Response] = engine.stub.SubscribeKvEvents(request, timeout=TIMEOUT).__aiter__()
    return call


class Index:
    """A subscriber's view of the cache, built from messages alone."""

    def __init__(self) -> None:
        self.keys: dict[int, set[int]] = {}
        self.sequence = 0
        self.epoch = ""
        self._continues = False

    def apply(self, message: Response) -> None:
        if message.is_snapshot and not self._continues:
            self.keys = {engine_pb2.CACHE_TIER_DEVICE: set(), engine_pb2.CACHE_TIER_HOST: set()}
            self.epoch = message.epoch
        elif not message.is_snapshot:
            assert (message.first_sequence or message.sequence) == self.sequence + 1
        assert message.epoch == self.epoch
        self.sequence, self._continues = message.sequence, message.snapshot_continues
        for event in message.events:
            if event.HasField("stored"):
                assert event.stored.block_size == 16
                assert not self.keys[event.stored.tier].intersection(event.stored.block_keys)
                self.keys[event.stored.tier].update(event.stored.block_keys)
            elif event.HasField("removed"):
                assert self.keys[event.removed.tier].issuperset(event.removed.block_keys)
                self.keys[event.removed.tier].difference_update(event.removed.block_keys)
            else:
                self.keys = {tier: set() for tier in self.keys}
        assert message.HasField("device") is message.HasField("host") is not message.snapshot_continues
        if message.snapshot_continues:
            return
        for tier, digest in zip(sorted(self.keys), (message.device, message.host), strict=True):
            assert (digest.num_blocks, digest.keys_xor) == (len(self.keys[tier]), reduce(xor, self.keys[tier], 0))

    async def read_snapshot(self, messages: AsyncIterator[Response]) -> None:
        self.apply(await anext(messages))
        while self._continues:
            self.apply(await anext(messages))


def cached(contents: CacheContents) -> dict[int, set[int]]:
    """Returns the block keys in each cache tier."""
    tiers = {Tier.DEVICE: engine_pb2.CACHE_TIER_DEVICE, Tier.HOST: engine_pb2.CACHE_TIER_HOST}
    return {tiers[tier]: {block_key(each) for each in hashes} for tier, hashes in contents.hashes.items()}


async def test_kv_events_start_with_a_snapshot_and_go_on() -> None:
    async with running_engine() as engine:
        prompt = list(range(40))
        await generate(engine, generation(prompt, max_tokens=2))
        events, index = subscribe(engine, 0), Index()
        await index.read_snapshot(events)
        assert index.keys == {
            engine_pb2.CACHE_TIER_DEVICE: set(block_keys(prompt, 16)), engine_pb2.CACHE_TIER_HOST: set(),
        }  # fmt: skip
        # Later batches name each block's parent.
        longer = [*prompt, *range(500, 540)]
        await generate(engine, generation(longer, max_tokens=2))
        batch = await anext(events)
        keys = block_keys(longer, 16)
        assert (batch.sequence, batch.is_snapshot) == (index.sequence + 1, False)
        assert [event.stored.parent_block_key for event in batch.events] == [keys[1]]
        assert list(batch.events[0].stored.block_keys) == keys[2:]
        index.apply(batch)


async def test_a_kept_number_of_the_same_epoch_needs_no_snapshot() -> None:
    async with running_engine() as engine:
        index = Index()
        events = subscribe(engine, 0)
        await index.read_snapshot(events)
        sequence, epoch = index.sequence, index.epoch
        for start in range(3):
            await generate(engine, generation(list(range(100 * start, 100 * start + 40)), max_tokens=2))
            index.apply(await anext(events))
        replay = subscribe(engine, sequence + 1, epoch)
        again = await anext(replay)
        assert (again.first_sequence, again.sequence, again.is_snapshot) == (sequence + 1, sequence + 3, False)
        assert [list(event.stored.block_keys) for event in again.events] == [
            block_keys(list(range(100 * start, 100 * start + 40)), 16) for start in range(3)
        ]
        # A subscriber that is up to date gets only new events.
        current = subscribe(engine, index.sequence + 1, epoch)
        await generate(engine, generation(list(range(600, 640)), max_tokens=2))
        batch = await anext(current)
        assert not batch.is_snapshot
        index.apply(batch)


async def test_more_than_a_message_may_have_comes_in_several_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_engine() as engine:
        index = Index()
        await index.read_snapshot(subscribe(engine, 0))
        for start in range(5):
            await generate(engine, generation(list(range(100 * start, 100 * start + 40)), max_tokens=2))
        monkeypatch.setattr(kv_events, "SNAPSHOT_KEYS", 5)
        monkeypatch.setattr(kv_events, "GAP_SECONDS", TIMEOUT)
        replay = subscribe(engine, index.sequence + 1, index.epoch)
        messages = [await anext(replay) for _ in range(3)]
        assert [len(message.events) for message in messages] == [2, 2, 1]
        for message in messages:
            index.apply(message)


@pytest.mark.parametrize("asked", ["no number", "another epoch", "no epoch", "lost", "not there yet"])
async def test_who_cannot_go_on_gets_a_snapshot(asked: str) -> None:
    async with running_engine() as engine:
        engine.worker.loop.kv_events = EventLog(kept_batches=2)
        for start in range(5):
            await generate(engine, generation(list(range(100 * start, 100 * start + 40)), max_tokens=2))
        last, epoch = engine.worker.loop.kv_events.last_sequence, engine.worker.loop.kv_events.epoch
        wanted = {
            "no number": (0, epoch), "another epoch": (last, "other"), "no epoch": (last, ""),
            "lost": (last - 2, epoch), "not there yet": (last + 2, epoch),
        }[asked]  # fmt: skip
        index = Index()
        await index.read_snapshot(subscribe(engine, *wanted))
        assert index.sequence == last
        assert len(index.keys[engine_pb2.CACHE_TIER_DEVICE]) == 10
        assert not (await anext(subscribe(engine, last - 1, epoch))).is_snapshot


async def test_an_empty_cache_is_a_snapshot_too() -> None:
    async with running_engine() as engine:
        message = await anext(subscribe(engine, 0))
        assert (message.is_snapshot, message.snapshot_continues) == (True, False)
        Index().apply(message)


async def test_a_snapshot_has_its_own_number_though_the_event_loop_lags_behind() -> None:
    async with running_engine(FakeExecutor(step_seconds=0.001)) as engine:
        loop = engine.worker.loop
        running = asyncio.create_task(generate(engine, generation(list(range(40)), max_tokens=300)))
        while not loop.kv_events.last_sequence:
            await asyncio.sleep(0.001)
        asked = asyncio.create_task(loop.cache_contents())
        await asyncio.sleep(0)
        time.sleep(0.05)  # noqa: ASYNC251  (meanwhile the engine fills further blocks)
        sequence, contents = await asked
        batch = next(each for each in loop.kv_events.since(1) if each.sequence == sequence)
        assert batch.changes.digests == contents.digests
        await running


async def test_epochs_differ() -> None:
    async with running_engine() as one, running_engine() as other:
        assert one.worker.loop.kv_events.epoch != other.worker.loop.kv_events.epoch


async def test_both_tiers_are_told_and_snapshots_come_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_events, "SNAPSHOT_KEYS", 7)
    executor = FakeExecutor(bytes_per_block=2**20, verify=True)
    async with running_engine(
        executor, num_gpu_blocks_override=40, swap_space=HOST_BLOCKS / 1024, max_model_len=640
    ) as engine:
        follower = Index()
        events = subscribe(engine, 0)
        await follower.read_snapshot(events)
        prompts = [list(range(start, start + 150)) for start in range(0, 800, 50)]
        for prompt in [*prompts, *prompts[:4]]:
            await generate(engine, generation(prompt, max_tokens=5))
        sequence, contents = await engine.worker.loop.cache_contents()
        while follower.sequence < sequence:
            follower.apply(await anext(events))
        assert follower.keys == cached(contents)
        assert len(follower.keys[engine_pb2.CACHE_TIER_DEVICE]) > 30
        assert len(follower.keys[engine_pb2.CACHE_TIER_HOST]) == HOST_BLOCKS
        # A new subscriber learns the same from a snapshot, which takes several messages.
        late = Index()
        messages = subscribe(engine, 0)
        first = await anext(messages)
        assert first.snapshot_continues
        assert sum(len(event.stored.block_keys) for event in first.events) == 7
        late.apply(first)
        await late.read_snapshot(messages)
        assert late.keys == follower.keys
