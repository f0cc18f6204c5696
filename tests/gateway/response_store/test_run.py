"""Responses stored while they are generated, whatever happens to the store and to followers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from gateway.answers.deltas import ChoiceUpdate, Content
from gateway.answers.queue import AnswerQueue
from gateway.protocol.responses import ResponseBody, ResponsesReasoning, ResponsesText
from gateway.response_store.base import EventChunk, NewResponse
from gateway.response_store.run import Follower, Run
from gateway.response_store.sqlite import SqliteStore
from quire.errors import QuireError, Unavailable
from tests.support.waiting import eventually


class Writer:
    """Turns updates into events."""

    def __init__(self) -> None:
        self.body = ResponseBody(
            id="resp_1", created_at=0, model="m", status="in_progress", text=ResponsesText(),
            reasoning=ResponsesReasoning(), temperature=1, top_p=1,
        )  # fmt: skip

    def opening(self) -> Iterable[bytes]:
        return (b"open\n\n",)

    def update(self, update: ChoiceUpdate) -> Iterable[bytes]:
        if update.index:
            raise ValueError("a bug")
        return (b"update\n\n",)

    def closing(self, error: QuireError | None) -> Iterable[bytes]:
        self.body.status = "failed" if error else "completed"
        return (b"failed\n\n" if error else b"closed\n\n",)


class Flaky(SqliteStore):
    """A store whose next `failures` writes fail."""

    failures = 0

    async def beat(self, identity: str, chunk: EventChunk) -> bool:
        self._fail()
        return await super().beat(identity, chunk)

    async def finish(self, identity: str, body: bytes, chunk: EventChunk) -> None:
        self._fail()
        await super().finish(identity, body, chunk)

    async def add(self, new: NewResponse) -> None:
        self._fail()
        await super().add(new)

    def _fail(self) -> None:
        self.failures -= 1
        if self.failures >= 0:
            raise Unavailable("not now")


def update(index: int = 0) -> ChoiceUpdate:
    return ChoiceUpdate(index, (Content("x"),), (1,))


async def all_of(follower: Follower) -> Sequence[bytes]:
    found: list[bytes] = []
    while batch := await follower.next_batch(5):
        found += batch
    return found


@pytest.fixture
def store(tmp_path: Path) -> Flaky:
    return Flaky(tmp_path / "r.db", 10, 60.0)


async def work(store: Flaky, *updates: ChoiceUpdate, failures: int = 0, is_known: bool = False) -> Sequence[bytes]:
    """What a follower receives of a response that consists of these updates."""
    queue = AnswerQueue(1)
    run = Run(store, queue, Writer())
    if is_known:
        await run.keep("me", b"[]")
    store.failures = failures
    working = asyncio.create_task(run.work("me", b"[]"))
    follower = Follower(run)
    for each in updates:
        queue.push(each)
    queue.close()
    found = await all_of(follower)
    await working
    if error := follower.error:
        raise error
    return found


async def test_a_store_that_is_away_for_a_while_misses_nothing(store: Flaky, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.response_store.run.BEAT_SECONDS", 0.01)
    expected = [b"open\n\n", b"update\n\n", b"update\n\n", b"closed\n\n"]
    assert await work(store, update(), update(), failures=3, is_known=True) == expected
    assert await store.events("resp_1", -1) == expected
    kept = await store.get("resp_1", "me")
    assert kept is not None
    assert b'"completed"' in kept.body
    await store.close()


async def test_a_stream_that_cannot_be_kept_is_refused_at_its_beginning(store: Flaky) -> None:
    with pytest.raises(Unavailable, match="not now"):
        await work(store, update(), failures=1)
    await store.close()


async def test_a_bug_ends_it_for_all(store: Flaky) -> None:
    expected = [b"open\n\n", b"update\n\n", b"failed\n\n"]
    assert await work(store, update(), update(1)) == expected
    assert await store.events("resp_1", -1) == expected
    await store.close()


async def test_beats_store_what_has_come(store: Flaky, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.response_store.run.BEAT_SECONDS", 0.01)
    queue = AnswerQueue(1)
    run = Run(store, queue, Writer())
    working = asyncio.create_task(run.work("me", b"[]"))
    queue.push(update())
    deadline = asyncio.get_running_loop().time() + 10
    while len(await store.events("resp_1", -1)) < 2:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)
    await store.ask_to_stop("resp_1")
    await eventually(working.done, "it goes on")
    assert queue.closed
    await store.close()
