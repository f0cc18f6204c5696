"""Prefix cache events in vLLM's format, as a subscriber reads them from real sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from engine_svc.service.kv_publisher import KvPublisher, endpoint_of
from quire.block_hash import block_keys
from quire.errors import StartupError
from quire.options.cache import CacheOptions
from tests.support.engine_client import TIMEOUT, generate, generation
from tests.support.engine_server import RunningEngine, running_engine
from tests.support.fake_executor import FakeExecutor

PROMPT = list(range(40))
END = (-1).to_bytes(8, "big", signed=True)


class Subscriber:
    """Reads what a worker publishes, and asks again for what it missed."""

    def __init__(self, folder: Path) -> None:
        self.config: dict[str, Any] = {
            "enable_kv_cache_events": True, "endpoint": f"ipc://{folder}/events", "topic": "kv",
            "replay_endpoint": f"ipc://{folder}/replay", "buffer_steps": 3,
        }  # fmt: skip
        self.context = zmq.asyncio.Context()
        self._events = self.context.socket(zmq.SUB)
        self._events.setsockopt(zmq.SUBSCRIBE, b"kv")
        self._replay = self.context.socket(zmq.DEALER)

    def connect(self) -> None:
        self._events.connect(self.config["endpoint"])
        self._replay.connect(self.config["replay_endpoint"])

    async def next(self) -> tuple[int, list[dict[str, Any]]]:
        """(number, events) of the next batch."""
        async with asyncio.timeout(TIMEOUT):
            topic, number, payload = await self._events.recv_multipart()
        seconds, events, rank = msgspec.msgpack.decode(payload)
        assert (topic, rank) == (b"kv", 0) and seconds > 0
        return int.from_bytes(number, "big"), events

    async def missed(self, first: int) -> list[int]:
        """Numbers of the kept batches from `first` on."""
        await self._replay.send_multipart((b"", first.to_bytes(8, "big")))
        numbers: list[int] = []
        async with asyncio.timeout(TIMEOUT):
            while (frames := await self._replay.recv_multipart())[2] != END:
                numbers.append(int.from_bytes(frames[2], "big"))
                assert msgspec.msgpack.decode(frames[3])[1]
        return numbers


@contextlib.asynccontextmanager
async def published(subscriber: Subscriber, **options: Any) -> AsyncIterator[RunningEngine]:
    """An engine that publishes, with the subscriber connected."""
    executor = options.pop("executor", None)
    async with running_engine(executor, kv_events_config=subscriber.config, **options) as engine:
        config = CacheOptions(kv_events_config=subscriber.config).events()
        running = asyncio.create_task(KvPublisher(config, engine.worker).run())
        subscriber.connect()
        await asyncio.sleep(0.1)  # a subscription takes a moment, and what is published before is lost
        try:
            yield engine
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            subscriber.context.destroy(linger=0)


async def test_blocks_come_with_their_tokens_and_parents(tmp_path: Path) -> None:
    subscriber = Subscriber(tmp_path)
    async with published(subscriber) as engine:
        await generate(engine, generation(PROMPT, max_tokens=2))
        keys = block_keys(PROMPT, 16)
        stored = {
            "type": "BlockStored", "block_hashes": keys, "parent_block_hash": None, "token_ids": PROMPT[:32],
            "block_size": 16, "lora_id": None, "medium": "GPU", "lora_name": None,
        }  # fmt: skip
        assert await subscriber.next() == (0, [stored])
        longer = [*PROMPT, *range(500, 540)]
        await generate(engine, generation(longer, max_tokens=2))
        number, (event,) = await subscriber.next()
        assert (number, event["parent_block_hash"]) == (1, keys[1])
        assert event["block_hashes"] == block_keys(longer, 16)[2:]
        assert event["token_ids"] == longer[32:80]


async def test_a_salt_is_told_with_the_first_block(tmp_path: Path) -> None:
    subscriber = Subscriber(tmp_path)
    async with published(subscriber) as engine:
        await generate(engine, generation(PROMPT, max_tokens=2, cache_salt="mine"))
        _, (event,) = await subscriber.next()
        assert event["extra_keys"] == [["mine"], None]


async def test_blocks_that_go_are_removed_and_clearing_removes_all(tmp_path: Path) -> None:
    subscriber = Subscriber(tmp_path)
    async with published(subscriber, executor=FakeExecutor(), num_gpu_blocks_override=6) as engine:
        stored: set[int] = set()
        for start in range(0, 400, 100):
            await generate(engine, generation(list(range(start, start + 40)), max_tokens=2))
        number = -1
        while number < 3:
            number, events = await subscriber.next()
            for event in events:
                hashes = set(event["block_hashes"])
                assert event["medium"] == "GPU"
                stored = stored | hashes if event["type"] == "BlockStored" else stored - hashes
        contents = (await engine.worker.loop.cache_contents())[1]
        assert len(stored) == sum(map(len, contents.hashes.values())) < 8
        await engine.worker.administration.reset_prefix_cache(preempts=False)
        assert await subscriber.next() == (4, [{"type": "AllBlocksCleared"}])


async def test_batches_that_were_missed_are_sent_again_as_far_as_they_are_kept(tmp_path: Path) -> None:
    subscriber = Subscriber(tmp_path)
    async with published(subscriber) as engine:
        for start in range(0, 500, 100):
            await generate(engine, generation(list(range(start, start + 40)), max_tokens=2))
            await subscriber.next()
        assert await subscriber.missed(3) == [3, 4]
        assert await subscriber.missed(0) == [2, 3, 4]
        assert await subscriber.missed(9) == []


async def test_an_endpoint_that_is_taken_ends_the_start(tmp_path: Path) -> None:
    subscriber = Subscriber(tmp_path)
    with subscriber.context.socket(zmq.PUB) as other:
        port = other.bind_to_random_port("tcp://127.0.0.1")
        config = CacheOptions(kv_events_config=subscriber.config | {"endpoint": f"tcp://*:{port}"}).events()
        async with running_engine() as engine:
            with pytest.raises(StartupError, match="each worker of a machine needs its own"):
                KvPublisher(config, engine.worker)
    subscriber.context.destroy(linger=0)


def test_events_need_prefix_caching() -> None:
    options = CacheOptions(enable_prefix_caching=False, kv_events_config={"enable_kv_cache_events": True})
    with pytest.raises(StartupError, match="needs prefix caching"):
        options.events()
    off = CacheOptions(kv_events_config={"enable_kv_cache_events": True, "publisher": "null"})
    assert not off.events().is_on


@pytest.mark.parametrize(
    ("endpoint", "rank", "own"),
    [
        ("tcp://*:5557", 0, "tcp://*:5557"), ("tcp://*:5557", 2, "tcp://*:5559"), ("tcp://*:0", 2, "tcp://*:0"),
        ("ipc:///tmp/kv", 1, "ipc:///tmp/kv_dp1"),
    ],
)  # fmt: skip
def test_each_rank_has_an_endpoint_of_its_own(endpoint: str, rank: int, own: str) -> None:
    assert endpoint_of(endpoint, rank) == own
