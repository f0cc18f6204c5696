"""The contract of every response store."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from fakeredis import TcpFakeServer

from gateway.response_store.base import MAX_CHUNKS, EventChunk, NewResponse, ResponseStore, Stage
from gateway.response_store.redis import RedisStore
from gateway.response_store.sqlite import SqliteStore
from quire.errors import Unavailable

OpenStore = Callable[..., AbstractAsyncContextManager[ResponseStore]]
NEW = NewResponse("resp_1", "me", b'{"a":1}', b"[]")
LIVE = NewResponse("resp_2", "me", b"{}", b"[]", is_live=True, has_events=True)
EVENTS = [b"event: e\ndata: %d\n\n" % number for number in range(6)]
AGE = 60.0


@pytest.fixture
def redis_url() -> Iterator[str]:
    """Runs a fake Redis server in a thread and yields its URL."""
    server = TcpFakeServer(("127.0.0.1", 0))
    server.daemon_threads = True
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    serving.start()
    yield f"redis://127.0.0.1:{server.server_address[1]}/0"
    server.shutdown()
    server.server_close()
    serving.join(10)


@pytest.fixture(params=["sqlite", "redis"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    """Returns a function that opens the same store each time, as another gateway would."""
    url = request.getfixturevalue("redis_url") if request.param == "redis" else ""

    @contextlib.asynccontextmanager
    async def opened(count: int = 10, age: float = AGE, lease: float = 30.0) -> AsyncIterator[ResponseStore]:
        store: ResponseStore
        store = RedisStore(url, count, age, lease) if url else SqliteStore(tmp_path / "r.db", count, age, lease)
        try:
            yield store
        finally:
            await store.close()

    return opened


async def stage(store: ResponseStore, identity: str = LIVE.id) -> Stage | None:
    found = await store.get(identity, "me")
    return found and found.stage


async def test_what_is_kept_is_found_by_its_tenant_alone(open_store: OpenStore) -> None:
    async with open_store() as store:
        await store.add(NEW)
        async with open_store() as other:
            found = await other.get(NEW.id, "me")
            assert found is not None
            assert (found.body, found.items, found.stage, found.has_events) == (NEW.body, b"[]", Stage.ENDED, False)
        for identity, tenant in ((NEW.id, "you"), (NEW.id, ""), ("resp_x", "me"), ("", "me")):
            assert await store.get(identity, tenant) is None
            assert not await store.delete(identity, tenant)
        assert await store.delete(NEW.id, "me")
        assert await store.get(NEW.id, "me") is None


async def test_events_come_back_as_one(open_store: OpenStore) -> None:
    async with open_store() as store:
        await store.add(LIVE)
        assert await store.beat(LIVE.id, EventChunk(0, EVENTS[:2]))
        assert await store.beat(LIVE.id, EventChunk(2))
        assert await store.beat(LIVE.id, EventChunk(2, EVENTS[2:3]))
        assert await store.beat(LIVE.id, EventChunk(2, EVENTS[2:5]))  # a repeated event together with new ones
        await store.finish(LIVE.id, b"[1]", EventChunk(5, EVENTS[5:]))
        for after in (-1, 0, 1, 2, 4, 5, 9):
            assert await store.events(LIVE.id, after) == EVENTS[after + 1 :]
        assert await store.events("resp_x", -1) == []


async def test_many_events_are_read_in_pieces(open_store: OpenStore) -> None:
    async with open_store() as store:
        await store.add(LIVE)
        for number in range(MAX_CHUNKS + 1):
            await store.beat(LIVE.id, EventChunk(number, [b"data: %d\n\n" % number]))
        sizes = []
        while found := await store.events(LIVE.id, sum(sizes) - 1):
            sizes.append(len(found))
        assert sizes == [MAX_CHUNKS, 1]


async def test_what_has_ended_does_not_change(open_store: OpenStore) -> None:
    async with open_store() as store:
        await store.add(LIVE)
        assert await stage(store) is Stage.LIVE
        await store.finish(LIVE.id, b"[1]", EventChunk(0))
        assert await stage(store) is Stage.ENDED
        assert not await store.beat(LIVE.id, EventChunk(0, EVENTS))
        await store.finish(LIVE.id, b"[2]", EventChunk(0, EVENTS))
        await store.ask_to_stop(LIVE.id)
        found = await store.get(LIVE.id, "me")
        assert found is not None
        assert (found.body, await store.events(LIVE.id, -1)) == (b"[1]", [])


async def test_whoever_works_on_it_gets_to_know_that_it_is_to_stop(open_store: OpenStore) -> None:
    async with open_store() as store:
        await store.add(LIVE)
        async with open_store() as other:
            await other.ask_to_stop(LIVE.id)
        assert not await store.beat(LIVE.id, EventChunk(0, EVENTS[:1]))
        assert await store.events(LIVE.id, -1) == EVENTS[:1]
        await store.delete(LIVE.id, "me")
        assert not await store.beat(LIVE.id, EventChunk(1, EVENTS[1:]))
        await store.finish(LIVE.id, b"[1]", EventChunk(1, EVENTS[1:]))
        assert await store.get(LIVE.id, "me") is None
        assert await store.events(LIVE.id, -1) == []


async def test_one_that_is_deleted_while_it_is_asked_to_stop_stays_deleted(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write to a Redis hash that was deleted in the meantime must not create it again."""
    store, other = RedisStore(redis_url, 10, AGE), RedisStore(redis_url, 10, AGE)
    read = redis.asyncio.client.Pipeline.hget

    async def read_before_it_goes(pipe: Any, *arguments: Any) -> Any:
        found = await read(pipe, *arguments)
        await other.delete(LIVE.id, "me")
        return found

    monkeypatch.setattr(redis.asyncio.client.Pipeline, "hget", read_before_it_goes)
    await store.add(LIVE)
    await store.ask_to_stop(LIVE.id)
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        assert await client.keys("quire:response:*") == []
    await store.close()
    await other.close()


async def test_without_beats_it_is_abandoned(open_store: OpenStore) -> None:
    async with open_store(lease=0.2) as store:
        await store.add(LIVE)
        await asyncio.sleep(0.3)
        assert await stage(store) is Stage.ABANDONED
        assert await store.beat(LIVE.id, EventChunk(0))
        await asyncio.sleep(0.3)
        assert await stage(store) is Stage.ABANDONED
        await store.finish(LIVE.id, b"{}", EventChunk(0))
        assert await stage(store) is Stage.ENDED


async def test_the_oldest_make_room(open_store: OpenStore) -> None:
    async with open_store(count=3) as store:
        for number in range(5):
            await store.add(NewResponse(f"resp_{number}", "me", b"{}", b"[]"))
            await asyncio.sleep(0.002)
        left = [number for number in range(5) if await store.get(f"resp_{number}", "me")]
        assert left == [2, 3, 4]


async def test_what_is_live_makes_no_room(open_store: OpenStore) -> None:
    """Live responses are not evicted: a client with many requests cannot end those of others."""
    async with open_store(count=1) as store:
        await store.add(LIVE)
        for number in range(3):
            await store.add(NewResponse(f"resp_x{number}", "me", b"{}", b"[]"))
        assert await stage(store) is Stage.LIVE
        await asyncio.sleep(0.002)
        await store.finish(LIVE.id, b"{}", EventChunk(0))
        assert len([name for name in (LIVE.id, "resp_x2") if await store.get(name, "me")]) == 1


async def test_nothing_is_found_after_its_time(open_store: OpenStore) -> None:
    async with open_store(age=0.2) as store:
        await store.add(NEW)
        await asyncio.sleep(0.3)
        assert await store.get(NEW.id, "me") is None
        assert not await store.delete(NEW.id, "me")


async def test_a_store_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "r.db", 10, AGE)
    await store.close()
    with pytest.raises(Unavailable, match="response store is not available"):
        await store.get(NEW.id, "me")
    lost = RedisStore("redis://127.0.0.1:1/0", 10, AGE)
    for call in (lost.add(NEW), lost.get(NEW.id, "me"), lost.beat(NEW.id, EventChunk(0)), lost.events(NEW.id, -1)):
        with pytest.raises(Unavailable, match="response store is not available"):
            await call
    await lost.close()


async def test_a_file_is_its_owners_alone(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "r.db", 10, AGE)
    await store.add(NEW)
    await store.close()
    assert (tmp_path / "r.db").stat().st_mode & 0o777 == 0o600
