"""Time limits on waits, and their effect on streamed answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest
from starlette.types import Message

from gateway.answers import stream as stream_module
from gateway.answers.deltas import ChoiceUpdate
from gateway.answers.events import PING
from gateway.answers.patience import Patience
from gateway.answers.queue import AnswerQueue
from gateway.answers.stream import PIECES, EventStream
from quire.errors import QuireError, Unavailable
from tests.support.fake_engine import FakeOptions
from tests.support.gateway_stack import running_gateway
from tests.support.waiting import WAIT_SECONDS

LONG = 3600.0


class Writer:
    """Writes one byte for every update."""

    def opening(self) -> Iterable[bytes]:
        return ()

    def update(self, update: ChoiceUpdate) -> Iterable[bytes]:
        return (b"u",)

    def closing(self, error: QuireError | None) -> Iterable[bytes]:
        return (b"end",)


async def receive() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


def update() -> ChoiceUpdate:
    return ChoiceUpdate(0, (), [1])


async def test_the_first_wait_that_takes_too_long_is_told_once() -> None:
    lost = asyncio.Event()
    patience = Patience(lost.set)
    for _ in range(3):
        patience.begin(LONG)
        patience.end()
    patience.begin(0.01)  # earlier than the timer already set
    await asyncio.wait_for(lost.wait(), WAIT_SECONDS)
    lost.clear()
    await asyncio.sleep(0.05)
    assert not lost.is_set()


async def test_a_wait_that_ended_in_time_is_not_told_and_the_next_one_has_its_own_time() -> None:
    lost: list[float] = []
    loop = asyncio.get_running_loop()
    patience = Patience(lambda: lost.append(loop.time()))
    patience.begin(0.1)
    patience.end()
    await asyncio.sleep(0.05)
    began = loop.time()
    patience.begin(0.2)
    while not lost:
        await asyncio.sleep(0.01)
    assert lost[0] - began >= 0.2
    patience.begin(0.01)
    patience.close()
    await asyncio.sleep(0.05)
    assert len(lost) == 1


async def test_a_queue_says_that_nothing_has_come_in_time() -> None:
    queue = AnswerQueue(1)
    assert await queue.next_batch(0.01) is None
    queue.push(update())
    assert await queue.next_batch(LONG) == [update()]
    assert await queue.next_batch(0.01) is None
    queue.close()
    assert await queue.next_batch(LONG) == []


async def test_a_stream_on_which_nothing_comes_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "_PING_SECONDS", 0.02)
    queue, sent = AnswerQueue(1), asyncio.Queue[Message]()
    queue.push(update())
    task = asyncio.create_task(EventStream(queue, Writer(), 0)({"type": "http"}, receive, sent.put))
    messages = [await asyncio.wait_for(sent.get(), WAIT_SECONDS) for _ in range(4)]
    assert [message.get("body") for message in messages] == [None, b"u", PING, PING]
    queue.close()
    await asyncio.wait_for(task, WAIT_SECONDS)
    assert not sent.empty()


@pytest.mark.parametrize("error", [None, Unavailable("gone")])
async def test_clients_may_hear_something_before_the_first_token(error: QuireError | None) -> None:
    queue, sent = AnswerQueue(1), asyncio.Queue[Message]()
    task = asyncio.create_task(EventStream(queue, Writer(), 0.02)({"type": "http"}, receive, sent.put))
    messages = [await asyncio.wait_for(sent.get(), WAIT_SECONDS) for _ in range(3)]
    assert [message.get("body") for message in messages] == [None, PING, PING]
    assert messages[0]["status"] == 200
    if error:
        queue.fail(error)
    else:
        queue.push(update())
        queue.close()
    await asyncio.wait_for(task, WAIT_SECONDS)
    told = [body for body in (sent.get_nowait()["body"] for _ in range(sent.qsize())) if body != PING]
    assert told == ([b"end"] if error else [b"u", b"end"])


async def test_pieces_go_straight_to_a_server_that_takes_them() -> None:
    queue, sent, written = AnswerQueue(1), asyncio.Queue[Message](), asyncio.Queue[bytes]()
    takes = True

    def write(piece: bytes) -> bool:
        if takes:
            written.put_nowait(piece)
        return takes

    queue.push(update())
    scope = {"type": "http", "extensions": {PIECES: {"write": write}}}
    task = asyncio.create_task(EventStream(queue, Writer(), 0)(scope, receive, sent.put))
    assert (await asyncio.wait_for(sent.get(), WAIT_SECONDS))["type"] == "http.response.start"
    assert await asyncio.wait_for(written.get(), WAIT_SECONDS) == b"u"
    takes = False  # the client is slow: from now on, data is queued behind the message
    queue.push(update())
    assert (await asyncio.wait_for(sent.get(), WAIT_SECONDS))["body"] == b"u"
    queue.close()
    await asyncio.wait_for(task, WAIT_SECONDS)
    assert not (await sent.get()).get("more_body")
    assert written.empty()


async def test_slow_streams_of_every_api_are_kept_open(tokenizer_folder: Path) -> None:
    chat = {"model": "fake", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "stream": True}
    asked = {
        "/v1/chat/completions": chat,
        "/v1/messages": chat,
        "/v1/completions": {"model": "fake", "prompt": "a", "max_tokens": 1, "stream": True},
        "/v1/responses": {"model": "fake", "input": "a", "max_output_tokens": 1, "stream": True},
    }
    async with running_gateway(tokenizer_folder, FakeOptions(silent=True), sse_keep_alive_interval=1) as stack:
        heard = asyncio.Barrier(len(asked))

        async def read(path: str) -> tuple[bytes, bytes]:
            async with stack.client.stream("POST", path, json=asked[path]) as answer:
                chunks = answer.aiter_bytes()
                first = await asyncio.wait_for(anext(chunks), WAIT_SECONDS)
                await heard.wait()
                stack.engine.options = FakeOptions()
                return first, b"".join([chunk async for chunk in chunks])

        answers = await asyncio.gather(*map(read, asked))
    for path, (first, rest) in zip(asked, answers, strict=True):
        assert first == PING, path
        assert len(rest) > 100, path
        assert b'"error"' not in rest.replace(b'"error":null', b""), path
