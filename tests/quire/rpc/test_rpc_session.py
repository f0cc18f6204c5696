"""Outbox and SessionLink: batching, bounds, reconnection, silence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import grpc
import pytest

from quire.errors import Internal, Overloaded, QuireError, Unavailable
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.rpc import session as session_module
from quire.rpc.channel import open_channel, session_channel
from quire.rpc.session import Outbox, SessionLink
from quire.rpc.settings import HEARTBEAT_SECONDS, LATE_SECONDS, LOST_SECONDS
from quire.v1 import engine_pb2, engine_pb2_grpc
from tests.quire.rpc.conftest import StartServer
from tests.support.engine_process import free_port
from tests.support.fake_engine import FakeEngine, expected_tokens
from tests.support.router_client import generation
from tests.support.waiting import WAIT_SECONDS, eventually

Frame = engine_pb2.EngineServiceSessionResponse
Link = SessionLink[engine_pb2.EngineServiceSessionRequest, Frame]


class Owner:
    """Holds a link and records what it reports."""

    # Sessions go over a Unix socket where there is one, otherwise over gRPC.
    local = True

    def __init__(self, address: str, lost_seconds: float = 10.0) -> None:
        self.channel = open_channel(address, RpcSecurityOptions())
        sessions = session_channel(self.channel, address, RpcSecurityOptions()) if self.local else self.channel
        self.stub = engine_pb2_grpc.EngineServiceStub(sessions)
        self.tokens: list[int] = []
        self.frames = 0
        self.connections = 0
        self.losses: list[QuireError] = []
        self.poisoned = False
        self.link: Link = SessionLink(
            "The engine", self.stub.Session, engine_pb2.EngineServiceSessionRequest, self.on_frame, self.losses.append,
            on_connected=self.on_connected, lost_seconds=lost_seconds,
        )  # fmt: skip

    def on_connected(self) -> None:
        assert self.link.connected and not self.link.late
        self.connections += 1

    def on_frame(self, frame: Frame) -> None:
        if self.poisoned:
            raise ZeroDivisionError
        self.frames += 1
        self.tokens += [token for delta in frame.deltas for token in delta.token_ids]

    async def run(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.link.run())
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await self.channel.close()


@pytest.fixture(autouse=True, params=["local", "grpc"])
def transport(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs every test with sessions over gRPC and over a local Unix socket."""
    monkeypatch.setattr(Owner, "local", request.param == "local")


@pytest.fixture
async def engine(start_server: StartServer) -> FakeEngine:
    return await start_server()


@pytest.fixture
async def owner(engine: FakeEngine) -> AsyncIterator[Owner]:
    owner = Owner(engine.address)
    async for _ in owner.run():
        yield owner


async def test_an_outbox_batches_what_is_posted_between_two_takes() -> None:
    outbox = Outbox(Frame)
    assert await outbox.next(timeout=0.01) is None
    for number in range(5):
        outbox.post().deltas.add(stream_id=number)
    assert outbox.pending
    frame = await outbox.next()
    assert frame is not None
    assert [delta.stream_id for delta in frame.deltas] == list(range(5))
    assert not outbox.pending
    outbox.post().deltas.add(stream_id=9)
    second = await outbox.next()
    assert second is not None
    assert [delta.stream_id for delta in second.deltas] == [9]


async def test_a_waiting_reader_of_an_outbox_wakes() -> None:
    outbox = Outbox(Frame)
    reader = asyncio.create_task(outbox.next())
    await asyncio.sleep(0)
    outbox.post().deltas.add(stream_id=1)
    assert await asyncio.wait_for(reader, WAIT_SECONDS) is not None


async def test_what_waits_in_an_outbox_goes_with_the_next_post_or_a_flush() -> None:
    outbox = Outbox(Frame)
    outbox.flush()
    assert not outbox.pending
    outbox.post(waits=True).deltas.add(stream_id=1)
    assert await outbox.next(timeout=0.01) is None
    outbox.post().deltas.add(stream_id=2)
    frame = await outbox.next()
    assert frame is not None and [delta.stream_id for delta in frame.deltas] == [1, 2]
    outbox.post(waits=True).deltas.add(stream_id=3)
    outbox.flush()
    frame = await outbox.next()
    assert frame is not None and [delta.stream_id for delta in frame.deltas] == [3]


async def test_an_outbox_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MAX_PENDING_ITEMS", 10)
    outbox = Outbox(Frame)
    outbox.post(10)
    with pytest.raises(Overloaded):
        outbox.post()
    outbox.post(0).deltas.add(stream_id=1)  # what ends something is never refused
    assert await outbox.next() is not None
    with pytest.raises(Overloaded):
        outbox.post(11)
    outbox.post(10)  # what was refused has taken no room


async def test_large_entries_go_out_in_several_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "MAX_FRAME_BYTES", 100)
    outbox = Outbox(Frame)
    for number, size in enumerate((60, 40, 1, 500, 30, 0)):
        outbox.post(num_bytes=size).deltas.add(stream_id=number)
    frames = []
    while outbox.pending:
        frames.append(await outbox.next())
    assert [[delta.stream_id for delta in frame.deltas] for frame in frames if frame] == [[0, 1], [2], [3], [4, 5]]


async def test_frames_go_both_ways(owner: Owner) -> None:
    await eventually(lambda: owner.link.connected)
    owner.link.post().starts.add(stream_id=1, generation=generation([2], 10))
    await eventually(lambda: owner.tokens == expected_tokens([2], 10))
    assert owner.connections == 1
    assert not owner.losses


async def test_what_waits_goes_out_with_a_beat(owner: Owner) -> None:
    await eventually(lambda: owner.link.connected, "the link is up")
    owner.link.post(waits=True).starts.add(stream_id=1, generation=generation([1, 2, 3], 5))
    await eventually(lambda: owner.tokens == expected_tokens([1, 2, 3], 5), "the tokens")


async def test_posting_without_a_connection_is_an_error() -> None:
    owner = Owner("127.0.0.1:1")
    with pytest.raises(Unavailable, match="cannot be reached"):
        owner.link.post()
    async for _ in owner.run():
        await eventually(lambda: isinstance(owner.link.error, Unavailable))
        assert not owner.link.connected
    assert not owner.losses  # it was never connected


async def test_a_link_comes_back_after_its_peer_restarts(start_server: StartServer) -> None:
    port = free_port()
    first = await start_server(server=GrpcServerOptions(port=port))
    owner = Owner(first.address)
    async for _ in owner.run():
        await eventually(lambda: owner.link.connected)
        await first.close()
        await eventually(lambda: len(owner.losses) == 1)
        assert not owner.link.connected
        await start_server(server=GrpcServerOptions(port=port))
        await eventually(lambda: owner.link.connected)
        owner.link.post().starts.add(stream_id=1, generation=generation([2], 5))
        await eventually(lambda: owner.tokens == expected_tokens([2], 5))
    assert (owner.connections, len(owner.losses)) == (2, 1)


async def test_a_frame_that_cannot_be_handled_costs_the_connection_not_the_link(owner: Owner) -> None:
    await eventually(lambda: owner.link.connected)
    owner.poisoned = True
    await eventually(lambda: owner.losses)
    assert isinstance(owner.losses[0], Internal)
    owner.poisoned = False
    await eventually(lambda: owner.link.connected)
    frames = owner.frames
    await eventually(lambda: owner.frames > frames)


async def test_a_link_that_is_stopped_just_as_its_connection_ends_stops(
    engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a router that closes while a worker leaves would never end."""
    ending = asyncio.Event()

    async def slow_to_end(*_: object) -> QuireError:
        try:
            await asyncio.sleep(3600)
        finally:
            ending.set()
            await asyncio.sleep(0.1)
        raise AssertionError

    owner = Owner(engine.address)
    monkeypatch.setattr(owner.link, "_write", slow_to_end)
    running = asyncio.create_task(owner.link.run())
    await eventually(lambda: owner.connections)
    owner.link.give_up()
    await ending.wait()
    running.cancel()
    await asyncio.wait([running], timeout=WAIT_SECONDS)
    assert running.done()
    await owner.channel.close()


async def test_heartbeats_keep_a_link_from_being_late(owner: Owner) -> None:
    await eventually(lambda: owner.frames > LATE_SECONDS / HEARTBEAT_SECONDS)
    await eventually(lambda: not owner.link.late)
    assert not owner.losses


class SilentEngine(engine_pb2_grpc.EngineServiceServicer):
    """Accepts sessions and sends nothing."""

    async def Session(
        self, request_iterator: AsyncIterator[engine_pb2.EngineServiceSessionRequest], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[Frame]:
        await asyncio.sleep(3600)
        yield Frame()


@pytest.fixture
async def silent_address() -> AsyncIterator[str]:
    # The server's own settings are under test, so it is built by the class that every service uses.
    silent = FakeEngine()
    silent.Session = SilentEngine().Session  # type: ignore[method-assign]  # the only call that differs
    engine_pb2_grpc.add_EngineServiceServicer_to_server(silent, silent.rpc.server)
    await silent.start()
    yield silent.address
    await silent.close()


async def test_silence_makes_a_link_late_and_then_lost(silent_address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "LATE_SECONDS", 0.2)
    owner = Owner(silent_address, lost_seconds=0.5)
    async for _ in owner.run():
        await eventually(lambda: owner.link.late and owner.link.connected)
        await eventually(lambda: owner.losses)
        assert "no heartbeat for 0.5 s" in owner.losses[0].message


async def test_a_pause_of_ones_own_is_not_the_peers_silence(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    await eventually(lambda: owner.frames)
    clock, frames = time.monotonic, owner.frames
    # This advances the event loop's clock too: everything due in between fires at once, as after SIGSTOP and SIGCONT.
    monkeypatch.setattr(time, "monotonic", lambda: clock() + 2 * LOST_SECONDS)
    assert owner.link.late
    await eventually(lambda: owner.frames >= frames + 4)
    assert not owner.losses


@pytest.mark.slow
async def test_a_silent_stream_survives_its_pings(silent_address: str) -> None:
    """With gRPC's default settings, the server would end it after three pings a second apart (ENHANCE_YOUR_CALM)."""
    async with open_channel(silent_address, RpcSecurityOptions()) as channel:
        call = engine_pb2_grpc.EngineServiceStub(channel).Session()
        await asyncio.wait_for(call.wait_for_connection(), WAIT_SECONDS)
        await asyncio.sleep(5.5)
        assert not call.done()
        call.cancel()
