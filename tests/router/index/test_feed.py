"""The router's prefix index over real event streams: followed, corrected, and used."""

from __future__ import annotations

import asyncio
import functools
import operator
import time
from collections import Counter
from collections.abc import AsyncIterator

import grpc
import pytest

from quire.block_hash import block_keys
from quire.v1 import engine_pb2
from router.index.feed import KvFeed
from router.index.members import Members
from router.index.prefix_index import PrefixIndex
from tests.router.conftest import Running, StartEngine, StartRouter
from tests.support.fake_cache import HOST
from tests.support.fake_engine import FakeEngine, expected_tokens
from tests.support.router_client import generation
from tests.support.waiting import eventually

KEYS = list(range(1, 21))


def coverage(running: Running, engine: FakeEngine, keys: list[int]) -> tuple[int, int]:
    """Number of leading blocks cached on the device, and of those after them in host memory."""
    worker = next(worker for worker in running.router.registry.workers if worker.address == engine.address)
    device, host = running.router.index.cover(keys, Members.of([worker.blocks.bit]))
    return int(device[0]), 0 if host is None else int(host[0])


async def known(running: Running, engine: FakeEngine, device: int, host: int = 0) -> None:
    await eventually(lambda: coverage(running, engine, KEYS) == (device, host), f"{device} + {host} blocks")


def resyncs(running: Running) -> float:
    return running.router.metrics.get_sample_value("quire_router_index_resyncs_total") or 0


async def test_events_are_followed_in_both_tiers(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine()
    engine.cache.store(KEYS[:5])
    running = await start_router(engine.address)
    await known(running, engine, 5)  # from the snapshot
    engine.cache.store(KEYS[5:10])
    await known(running, engine, 10)
    engine.cache.remove(KEYS[8:10])
    engine.cache.store(KEYS[8:12], HOST)
    await known(running, engine, 8, 4)
    engine.cache.clear()
    await known(running, engine, 0)
    worker = (await running.client.workers())[engine.address]
    assert (worker.cached_blocks, worker.host_cached_blocks) == (0, 0)
    assert resyncs(running) == 0
    assert len(engine.cache.subscriptions) == 1


async def test_batches_that_come_together_are_taken_in_as_one(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine()
    running = await start_router(engine.address)
    await known(running, engine, 0)
    engine.cache.end_streams()
    engine.cache.store(KEYS[:8])
    engine.cache.remove(KEYS[4:8])
    engine.cache.store(KEYS[4:6])
    engine.cache.merge_batches()
    await known(running, engine, 6)
    assert [request.from_sequence for request in engine.cache.subscriptions] == [0, 1]


async def test_a_lost_batch_is_noticed(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine()
    running = await start_router(engine.address)
    engine.cache.store(KEYS[:5])
    await known(running, engine, 5)
    engine.cache.lose_batch()
    engine.cache.store(KEYS[5:7])
    await known(running, engine, 7)
    assert resyncs(running) == 1


async def test_blocks_that_vanish_without_an_event_are_noticed(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine()
    running = await start_router(engine.address)
    engine.cache.store(KEYS[:9])
    await known(running, engine, 9)
    engine.cache.forget_silently(KEYS[4:9])
    engine.cache.store([999])  # the next digest reveals it
    await known(running, engine, 4)
    assert resyncs(running) == 1


async def test_a_worker_restarted_in_place_keeps_no_credit(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """Its event numbers may have reached the old ones, but the epoch differs."""
    engine = await start_engine()
    running = await start_router(engine.address)
    for key in KEYS[:6]:
        engine.cache.store([key])
    await known(running, engine, 6)
    engine.cache.restart()
    for key in range(100, 110):
        engine.cache.store([key])
    engine.cache.store(KEYS[:1])
    await known(running, engine, 1)


async def test_a_connection_that_breaks_goes_on_where_it_was(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine()
    running = await start_router(engine.address)
    engine.cache.store(KEYS[:3])
    await known(running, engine, 3)
    engine.cache.end_streams()
    engine.cache.store(KEYS[3:6])
    await known(running, engine, 6)
    assert [request.from_sequence for request in engine.cache.subscriptions] == [0, 2]
    assert resyncs(running) == 0


async def test_a_worker_that_leaves_takes_its_blocks_along(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engine = await start_engine()
    running = await start_router()
    running.router.registry.announce("test", [engine.address])
    await running.client.wait_ready(engine.address)
    engine.cache.store(KEYS)
    await eventually(lambda: len(running.router.index) == 20)
    running.router.registry.announce("test", [])
    await eventually(lambda: len(running.router.index) == 0)


async def test_requests_follow_their_prefix(start_engine: StartEngine, start_router: StartRouter) -> None:
    """Growing conversations stay on the worker that has their prefix, and predicted cache hits come true."""
    engines = [await start_engine() for _ in range(4)]
    running = await start_router(*(engine.address for engine in engines))
    prompts = [[chat * 1000 + place for place in range(64)] for chat in range(8)]
    async with running.client.session() as session:
        for turn in range(5):
            for chat, prompt in enumerate(prompts):
                request = generation(prompt, 3, request_id=f"chat{chat}-turn{turn}")
                output = await (await session.start(100 * turn + chat, request)).wait_ended()
                assert output.error is None
                if turn:
                    assert output.usage.cached_prompt_tokens >= len(prompt) - 32
                prompt += range(turn * 20, turn * 20 + 20)
    for engine in engines:
        turns = Counter(request.request_id.split("-")[0] for request in engine.record.started)
        assert set(turns.values()) <= {5}
        assert len(turns) == 2
    errors = running.router.metrics.get_sample_value("quire_router_prediction_error_blocks_bucket", {"le": "0.0"})
    assert errors == 40


async def test_prompts_with_and_without_keys_are_the_same_to_the_router(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    engines = [await start_engine() for _ in range(3)]
    running = await start_router(*(engine.address for engine in engines))
    prompt = list(range(100))
    keys = block_keys(prompt, 16)
    async with running.client.session() as session:
        await (await session.start(1, generation(prompt, 2))).wait_ended()
        some = [
            {"prompt_block_keys": keys, "prompt_block_size": 16}, {},
            {"prompt_block_keys": keys[:2], "prompt_block_size": 16},  # keys that do not belong to this prompt
        ]  # fmt: skip
        for number, fields in enumerate(some, start=2):
            output = await (await session.start(number, generation(prompt, 2, **fields))).wait_ended()
            assert output.usage.cached_prompt_tokens == 96
    assert sorted(len(engine.record.started) for engine in engines) == [0, 0, 4]


async def test_workers_with_other_block_sizes_are_known_by_what_they_hold(
    start_engine: StartEngine, start_router: StartRouter, caplog: pytest.LogCaptureFixture
) -> None:
    """Workers have five block sizes, of which four are looked up, whatever block size the caller's keys have."""
    engines = [await start_engine(block_size=size) for size in (16, 16, 32, 32, 48, 48, 64, 80)]
    running = await start_router(*(engine.address for engine in engines))
    prompts = [[chat * 1000 + place for place in range(200)] for chat in range(6)]
    for chat, prompt in enumerate(prompts):
        size = engines[chat].options.block_size
        engines[chat].cache.store(block_keys(prompt, size))
        held = block_keys(prompt, size)
        await eventually(lambda chat=chat, held=held: coverage(running, engines[chat], held) == (len(held), 0))
    async with running.client.session() as session:
        for chat, prompt in enumerate(prompts):
            given = (16, 32)[chat % 2]
            fields = {"prompt_block_keys": block_keys(prompt, given), "prompt_block_size": given}
            request = generation(prompt, 2, request_id=f"chat{chat}", **fields)
            output = await (await session.start(chat, request)).wait_ended()
            size = engines[chat].options.block_size
            assert output.usage.cached_prompt_tokens == 199 // size * size
            explained = await running.client.explain(f"chat{chat}")
            known = {candidate.address: candidate.cached_tokens for candidate in explained.candidates}
            assert known == {each.address: 199 // size * size * (each is engines[chat]) for each in engines}
    errors = running.router.metrics.get_sample_value("quire_router_prediction_error_blocks_bucket", {"le": "0.0"})
    assert errors == len(prompts)
    assert (
        "in 5 different ways, with block sizes of 16, 32, 48, 64, 80 tokens; only the 4 most common are looked up"
        in caplog.text
    )


async def test_a_cold_prefix_is_shared_with_workers_of_another_block_size(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """Prefixes being computed are tracked in tokens, so that siblings do not compute one for both block sizes."""
    engines = [await start_engine(silent=True, block_size=size) for size in (16, 16, 16, 24, 24, 24)]
    running = await start_router(*(engine.address for engine in engines))
    prefix = list(range(4000))
    async with running.client.session() as session:
        for number in range(64):
            await session.start(number, generation([*prefix, number], 3))
        await eventually(lambda: sum(len(engine.live) for engine in engines) == 64)
        assert sum(bool(engine.record.started) for engine in engines) <= 2
        await session.abort(*range(64))
        await eventually(lambda: not len(running.router.table))


async def test_tenants_do_not_share(start_engine: StartEngine, start_router: StartRouter) -> None:
    engines = [await start_engine() for _ in range(2)]
    running = await start_router(*(engine.address for engine in engines))
    async with running.client.session() as session:
        for number, salt in enumerate(("a", "b", "a", "b")):
            request = generation(list(range(100)), 2, cache_salt=salt)
            output = await (await session.start(number, request)).wait_ended()
            assert output.usage.cached_prompt_tokens == (96 if number > 1 else 0)
    for engine in engines:
        assert len({request.cache_salt for request in engine.record.started}) == 1


async def test_siblings_that_arrive_at_once_share_a_cold_prefix(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """Siblings are placed by what is going to be cached, before any worker has reported it."""
    engines = [await start_engine(silent=True) for _ in range(8)]
    running = await start_router(*(engine.address for engine in engines))
    prefix = list(range(4000))
    async with running.client.session() as session:
        for number in range(64):
            await session.start(number, generation([*prefix, number], 3))
        await eventually(lambda: sum(len(engine.live) for engine in engines) == 64)
        assert sum(bool(engine.record.started) for engine in engines) <= 2
        await session.abort(*range(64))
        await eventually(lambda: not len(running.router.table))


async def test_why_a_request_went_where_it_did(start_engine: StartEngine, start_router: StartRouter) -> None:
    engines = [await start_engine() for _ in range(2)]
    running = await start_router(*(engine.address for engine in engines))
    prompt = list(range(200))
    async with running.client.session() as session:
        for number in range(2):
            await (await session.start(number, generation(prompt, 2, request_id=f"r{number}"))).wait_ended()
    answer = await running.client.explain("r1")
    by_address = {candidate.address: candidate for candidate in answer.candidates}
    holder = by_address.pop(answer.chosen)
    (other,) = by_address.values()
    assert (holder.cached_tokens, other.cached_tokens) == (192, 0)
    assert holder.cost_seconds < other.cost_seconds
    assert (answer.policy, answer.attempt, answer.prompt_tokens) == ("prefix", 1, 200)
    assert answer.would_choose == answer.chosen
    assert 0 < answer.decision_microseconds < 1e6
    assert [c.cost_with_weights_seconds for c in answer.candidates] == [c.cost_seconds for c in answer.candidates]
    with pytest.raises(grpc.aio.AioRpcError) as unknown:
        await running.client.explain("r2")
    assert unknown.value.code() is grpc.StatusCode.NOT_FOUND
    for weights in ({"temperature": -1.0}, {"interference": float("nan")}, {"host_tier": 1.5}):
        with pytest.raises(grpc.aio.AioRpcError, match=f"weights.{next(iter(weights))} is") as wrong:
            await running.client.explain("r1", **weights)
        assert wrong.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_request_that_has_begun_elsewhere_goes_where_its_output_is_cached(
    start_engine: StartEngine, start_router: StartRouter
) -> None:
    """As when a router takes over from another: the prompt is cached everywhere, the output on one worker."""
    engines = [await start_engine() for _ in range(3)]
    prompt = [7] * 32
    output = expected_tokens(prompt, 64)
    for engine in engines:
        engine.cache.store(block_keys(prompt, 16))
    engines[1].cache.store(block_keys(prompt + output, 16)[2:])
    running = await start_router(*(engine.address for engine in engines))
    for engine in engines:
        blocks = 6 if engine is engines[1] else 2
        await eventually(
            lambda engine=engine, blocks=blocks: (
                coverage(running, engine, block_keys(prompt + output, 16)) == (blocks, 0)
            )
        )
    request = generation(prompt, 80, request_id="begun", prompt_block_keys=block_keys(prompt, 16), prompt_block_size=16)
    request.progress.add(token_ids=output)
    assert await running.client.generate(request) == expected_tokens(prompt, 80)[64:]
    assert [len(engine.record.started) for engine in engines] == [0, 1, 0]
    explained = await running.client.explain("begun")
    assert max(candidate.cached_tokens for candidate in explained.candidates) == 80


async def test_an_index_that_was_full_gets_its_resolution_back(
    start_engine: StartEngine, start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.index.prefix_index._REFINE_SECONDS", 0.0)
    engine = await start_engine()
    engine.cache.store(KEYS)
    running = await start_router(engine.address, max_index_blocks=1024)
    many = list(range(1000, 7000))
    engine.cache.store(many)
    await eventually(lambda: running.router.index.device.sampling > 1)
    engine.cache.remove(many)
    await eventually(lambda: running.router.index.device.sampling == 1)
    await known(running, engine, len(KEYS))
    assert resyncs(running) == 0


async def test_one_whose_stream_has_broken_gets_its_resolution_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.index.prefix_index._REFINE_SECONDS", 0.0)
    monkeypatch.setattr("router.index.feed._RETRY_SECONDS", 0.1)
    index = PrefixIndex(64, time.monotonic)
    index.device._sampling = 4
    feed, asked, broken = KvFeed("w", index, lambda: None), list[int](), asyncio.Event()
    digest = engine_pb2.CacheDigest(num_blocks=len(KEYS), keys_xor=functools.reduce(operator.xor, KEYS))

    async def subscribe(
        request: engine_pb2.SubscribeKvEventsRequest,
    ) -> AsyncIterator[engine_pb2.SubscribeKvEventsResponse]:
        asked.append(request.from_sequence)
        if not request.from_sequence:
            batch = engine_pb2.SubscribeKvEventsResponse(
                sequence=7, epoch="e", is_snapshot=True, device=digest, host=engine_pb2.CacheDigest()
            )
            batch.events.add().stored.block_keys.extend(KEYS)
            yield batch
        if len(asked) > 1:
            await asyncio.Event().wait()
        broken.set()

    running = asyncio.create_task(feed.run(subscribe))
    await broken.wait()
    assert len(index.device) == len(KEYS) // 4
    while index.device.sampling > 1:
        index.clean()
        await asyncio.sleep(0)
    await eventually(lambda: len(index.device) == len(KEYS), "it keeps what it knew")
    assert asked == [0, 0]
    running.cancel()
