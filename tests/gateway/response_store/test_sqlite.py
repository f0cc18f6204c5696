"""The store of files when the disk is full, and when the clock jumps."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from gateway.response_store.base import EventChunk, NewResponse, Stage
from gateway.response_store.sqlite import SqliteStore
from quire.errors import Unavailable

HOUR = 3600.0


@pytest_asyncio.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "r.db", 100, 24 * HOUR)
    yield opened
    await opened.close()


def response(identity: str, size: int = 10) -> NewResponse:
    return NewResponse(identity, "tenant", b"b" * size, b"[]", is_live=True, has_events=True)


async def stage_of(store: SqliteStore, identity: str) -> Stage | None:
    found = await store.get(identity, "tenant")
    return found.stage if found else None


async def test_a_full_disk_refuses_what_is_new_and_keeps_what_is_there(store: SqliteStore) -> None:
    await store.add(response("first", 200_000))
    await store.add(response("second"))
    (pages,) = store._database.execute("PRAGMA page_count").fetchone()
    store._database.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(Unavailable, match="response store is not available"):
        await store.add(response("third", 200_000))
    with pytest.raises(Unavailable):
        await store.beat("second", EventChunk(0, [b"e" * 200_000]))
    assert await stage_of(store, "third") is None
    assert await stage_of(store, "second") is Stage.LIVE
    assert await store.beat("second", EventChunk(0, []))
    assert await store.delete("first", "tenant")  # makes room
    await store.add(response("third", 100_000))
    await store.finish("second", b"{}", EventChunk(0, [b"e"]))
    assert [await stage_of(store, each) for each in ("second", "third")] == [Stage.ENDED, Stage.LIVE]


async def test_a_clock_that_jumps_ends_nothing(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    await store.add(response("one"))
    for jump in (HOUR, -HOUR, 0.0):
        monkeypatch.setattr(time, "time", lambda jump=jump: now + jump)
        assert await store.beat("one", EventChunk(0, []))
        assert await stage_of(store, "one") is Stage.LIVE
    await store.finish("one", b"{}", EventChunk(0, [b"e"]))
    assert await stage_of(store, "one") is Stage.ENDED
