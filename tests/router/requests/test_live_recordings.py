"""Requests whose recordings go on while they run."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from quire.errors import Overloaded, Unavailable
from quire.v1 import common_pb2
from router.requests import sessions
from router.workers.remote import RemoteWorker
from tests.router.conftest import StartEngine, StartRouter
from tests.support.engine_process import free_port
from tests.support.fake_engine import FakeEngine
from tests.support.router_client import generation, recording
from tests.support.waiting import eventually


def begun(number: int = 1) -> common_pb2.Generation:
    return generation([1, 2, 3, number], images=[recording(b"begun", goes_on=True)])


def heard(engine: FakeEngine) -> list[list[bytes]]:
    return [[each.audio.inputs[0].data for each in live.heard] for live in engine.live]


async def test_audio_follows_its_request(start_engine: StartEngine, start_router: StartRouter) -> None:
    engine = await start_engine(silent=True)
    running = await start_router(engine.address)
    async with running.client.session() as session:
        for number in (7, 8):
            await session.start(number, begun(number))
        for audio in (b"0", b"1", b"2"):
            await session.hear(7, audio)
            await session.hear(8, audio * 2, is_last=audio == b"2")
        await session.hear(9, b"unknown")
        await eventually(lambda: [len(each.heard) for each in engine.live] == [3, 3])
        for request in engine.live:
            count = 2 if request.generation.prompt_token_ids[-1] == 8 else 1
            assert [each.audio.inputs[0].data for each in request.heard] == [b"0" * count, b"1" * count, b"2" * count]
            assert [each.is_last for each in request.heard] == [False, False, count == 2]
        await session.abort(7, 8)
        await eventually(lambda: not engine.live)
        await session.hear(7, b"late")
        await session.start(10, generation([1], 1))
        await eventually(lambda: len(engine.live) == 1)


async def test_audio_waits_with_its_request(
    start_engine: StartEngine, start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = await start_engine(silent=True)
    running = await start_router()
    running.router.registry.announce("test", [f"127.0.0.1:{free_port()}"])
    async with running.client.session() as session:
        for number in (2, 3):
            await session.start(number, begun(number))
            await session.hear(number, b"a")
        await session.hear(2, b"b", is_last=True)
        (caller,) = running.router.dispatcher.sessions
        await eventually(lambda: 2 in caller.streams and len(caller.streams[2].coming) == 2)
        monkeypatch.setattr(sessions, "MAX_IMAGES_BYTES", 50)
        await session.hear(3, b"c" * 50)
        error = (await session.outputs[3].wait_ended()).error
        assert isinstance(error, Overloaded) and "too long while the request was waiting" in error.message
        running.router.registry.announce("test", [engine.address])
        await eventually(lambda: heard(engine) == [[b"a", b"b"]])
        assert not caller.streams[2].coming
        await session.hear(2, b"d")
        await eventually(lambda: heard(engine) == [[b"a", b"b", b"d"]])


async def test_a_worker_that_does_not_take_what_waited_is_rid_of_the_request(
    start_engine: StartEngine, start_router: StartRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise Overloaded("It does not read.")

    monkeypatch.setattr(RemoteWorker, "hear", full)
    engine = await start_engine(silent=True)
    running = await start_router()
    running.router.registry.announce("test", [f"127.0.0.1:{free_port()}"])
    async with running.client.session() as session:
        output = await session.start(1, begun())
        await session.hear(1, b"a")
        callers = running.router.dispatcher.sessions
        await eventually(lambda: any(1 in caller.streams and caller.streams[1].coming for caller in callers))
        running.router.registry.announce("test", [engine.address])
        error = (await output.wait_ended()).error
        assert isinstance(error, Overloaded)
        await eventually(lambda: engine.record.started and not engine.live, "the engine goes on")


async def test_it_stays_where_it_is_heard(start_engine: StartEngine, start_router: StartRouter) -> None:
    """A lost worker ends it, even if there is another one."""
    engines = [await start_engine(silent=True) for _ in range(2)]
    running = await start_router(*(each.address for each in engines))
    async with running.client.session() as session:
        output = await session.start(1, begun())
        await session.hear(1, b"a")
        await eventually(lambda: sum(len(live.heard) for each in engines for live in each.live) == 1)
        holder = next(each for each in engines if each.live)
        await asyncio.sleep(0)
        await holder.close()
        error = (await output.wait_ended()).error
        assert isinstance(error, Unavailable) and "were lost" in error.message
        await session.hear(1, b"b")
    assert sum(len(each.record.started) for each in engines) == 1


async def test_it_begins_where_it_ends(start_engine: StartEngine, start_router: StartRouter) -> None:
    """No worker for prompts computes its beginning for others."""
    producer = await start_engine(kv_role="kv_producer")
    consumer = await start_engine(kv_role="kv_consumer", silent=True)
    running = await start_router(producer.address, consumer.address)
    async with running.client.session() as session:
        await session.start(1, generation(range(400), images=[recording(b"begun", goes_on=True)]))
        await eventually(lambda: consumer.live)
    assert not producer.record.started


async def test_a_single_call_cannot_go_on(start_engine: StartEngine, start_router: StartRouter) -> None:
    running = await start_router((await start_engine()).address)
    with pytest.raises(grpc.aio.AioRpcError, match="no more of it can follow in a call of Generate"):
        await running.client.generate(begun())
