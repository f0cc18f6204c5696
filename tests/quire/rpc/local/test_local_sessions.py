"""Sessions over a Unix socket: where they go, how they end, what they hold."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator

import grpc
import pytest

from quire.errors import Unauthenticated
from quire.options.server import GrpcServerOptions, RpcSecurityOptions
from quire.rpc.channel import call_metadata, open_channel, session_channel
from quire.rpc.local import channel as channel_module
from quire.rpc.local import frames as frames_module
from quire.rpc.local import server as server_module
from quire.rpc.local.channel import SessionCall
from quire.rpc.local.frames import FrameConnection, Kind
from quire.rpc.local.place import is_own_user, own_place, place_of
from quire.rpc.status import from_rpc_error
from quire.v1 import engine_pb2, engine_pb2_grpc
from tests.quire.rpc.conftest import StartServer
from tests.support.fake_engine import FakeEngine, expected_tokens
from tests.support.router_client import generation
from tests.support.waiting import WAIT_SECONDS, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names of sockets without files are Linux's")

NO_SECURITY = RpcSecurityOptions()


class NoSessions:
    """A channel on which sessions over gRPC fail."""

    def __getattr__(self, name: str) -> object:
        return lambda *_, **__: None

    def stream_stream(self, *_: object, **__: object) -> object:
        def refuse(**_: object) -> None:
            raise AssertionError("the session goes over gRPC")

        return refuse


def local_session(address: str, security: RpcSecurityOptions = NO_SECURITY) -> SessionCall:
    """A session that can only go over a Unix socket."""
    stub = engine_pb2_grpc.EngineServiceStub(session_channel(NoSessions(), address, security))
    call: SessionCall = stub.Session(metadata=call_metadata(security))
    return call


async def connected(call: SessionCall) -> SessionCall:
    await asyncio.wait_for(call.wait_for_connection(), WAIT_SECONDS)
    return call


async def tokens_of(call: SessionCall, count: int) -> list[int]:
    found: list[int] = []
    while len(found) < count:
        frame = await asyncio.wait_for(call.read(), WAIT_SECONDS)
        found += [token for delta in frame.deltas for token in delta.token_ids]
    return found


@pytest.fixture
async def engine(start_server: StartServer) -> FakeEngine:
    return await start_server()


@pytest.fixture
async def session(engine: FakeEngine) -> AsyncIterator[SessionCall]:
    call = await connected(local_session(engine.address))
    yield call
    call.cancel()


def start(count: int, prompt: list[int]) -> engine_pb2.EngineServiceSessionRequest:
    frame = engine_pb2.EngineServiceSessionRequest()
    frame.starts.add(stream_id=1, generation=generation(prompt, count))
    return frame


@pytest.mark.parametrize("address", ["127.0.0.1:5000", "localhost:5000"])
def test_a_port_of_the_loopback_address_has_a_socket_beside_it(address: str) -> None:
    assert place_of(address) == own_place("127.0.0.1", 5000) == own_place("0.0.0.0", 5000) == own_place("::", 5000)
    assert place_of(address) != place_of("127.0.0.1:5001")


@pytest.mark.parametrize("address", ["engine:5000", "10.0.0.1:5000", "[::1]:5000", "[fd00::1]:5000"])
def test_others_have_none(address: str) -> None:
    assert place_of(address) == ""
    assert own_place("10.0.0.1", 5000) == own_place("fd00::1", 5000) == ""


async def test_a_session_goes_over_the_socket(session: SessionCall) -> None:
    await session.write(start(20, [3]))
    assert await tokens_of(session, 20) == expected_tokens([3], 20)


async def test_large_messages_come_whole(session: SessionCall, engine: FakeEngine) -> None:
    prompt = [70_000] * 5_000_000  # three bytes each
    await session.write(start(1, prompt))
    assert await tokens_of(session, 1) == expected_tokens(prompt, 1)
    assert len(engine.record.started[0].prompt_token_ids) == len(prompt)


async def test_a_message_that_is_too_large_ends_the_session(
    session: SessionCall, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames_module, "MAX_MESSAGE_BYTES", 1000)
    await session.write(start(1, [70_000] * 1000))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await tokens_of(session, 1)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_session_without_the_token_is_refused(start_server: StartServer) -> None:
    engine = await start_server(RpcSecurityOptions(grpc_token="secret"))
    call = local_session(engine.address)
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await connected(call)
    assert isinstance(from_rpc_error(raised.value), Unauthenticated)
    call = await connected(local_session(engine.address, RpcSecurityOptions(grpc_token="secret")))
    call.cancel()


async def test_a_method_that_there_is_not_is_refused(engine: FakeEngine) -> None:
    channel = session_channel(NoSessions(), engine.address, NO_SECURITY)
    call = channel.stream_stream("/quire.v1.EngineService/Nothing", bytes, bytes)()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await connected(call)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_a_caller_that_goes_away_ends_its_session(session: SessionCall, engine: FakeEngine) -> None:
    await session.write(start(1_000_000, [3]))
    await tokens_of(session, 5)
    session.cancel()
    await eventually(lambda: engine.record.aborted and not engine.live, "its request is aborted")


async def test_a_server_that_stops_ends_its_sessions(session: SessionCall, engine: FakeEngine) -> None:
    await engine.close()
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await tokens_of(session, 1)
    assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    with pytest.raises(asyncio.InvalidStateError):
        await session.write(start(1, [3]))
    with pytest.raises(AssertionError, match="over gRPC"):  # nobody listens any more
        await connected(local_session(engine.address))


async def test_a_session_that_fails_tells_why(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "_read", None)
    call = await connected(local_session(engine.address))
    with pytest.raises(grpc.aio.AioRpcError, match="the log of this service") as raised:
        await asyncio.wait_for(call.read(), WAIT_SECONDS)
    assert raised.value.code() is grpc.StatusCode.INTERNAL


@pytest.mark.parametrize("module", [channel_module, server_module])
async def test_another_users_socket_is_not_used(
    engine: FakeEngine, module: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "is_own_user", lambda connection: False)
    with pytest.raises((AssertionError, grpc.aio.AioRpcError)):
        await connected(local_session(engine.address))


def test_whose_socket_it_is() -> None:
    one, other = socket.socketpair()
    with one, other:
        assert is_own_user(one)


async def test_where_the_name_is_taken_sessions_go_over_grpc(start_server: StartServer) -> None:
    with socket.socket(socket.AF_INET) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(own_place("127.0.0.1", port))
        engine = await start_server(server=GrpcServerOptions(port=port))
        async with open_channel(engine.address, NO_SECURITY) as channel:
            stub = engine_pb2_grpc.EngineServiceStub(session_channel(channel, engine.address, NO_SECURITY))
            call = await connected(stub.Session(metadata=()))
            await call.write(start(5, [3]))
            assert await tokens_of(call, 5) == expected_tokens([3], 5)
            call.cancel()


async def test_a_caller_that_says_nothing_of_use_is_cut_off(engine: FakeEngine) -> None:
    reader, writer = await asyncio.open_unix_connection(place_of(engine.address))
    writer.write(b"GET / HTTP/1.1\r\n\r\n" + bytes(100))
    assert await asyncio.wait_for(reader.read(), WAIT_SECONDS) == b""
    writer.close()


class Pair:
    """Two connected frame connections."""

    def __init__(self) -> None:
        self.one, self.other = FrameConnection(), FrameConnection()

    async def open(self) -> Pair:
        loop = asyncio.get_running_loop()
        for connection, end in zip((self.one, self.other), socket.socketpair(), strict=True):
            await loop.create_unix_connection(lambda connection=connection: connection, sock=end)
        return self


async def test_a_writer_waits_for_one_who_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames_module, "_MAX_WAITING_BYTES", 10_000)
    pair = await Pair().open()
    payloads = [os.urandom(5000) for _ in range(1000)]
    done = 0

    async def write() -> None:
        nonlocal done
        for payload in payloads:
            await pair.one.write(Kind.MESSAGE, payload)
            done += 1

    writing = asyncio.create_task(write())
    await eventually(lambda: not pair.other.transport.is_reading(), "it is not read from")
    await eventually(lambda: not pair.one.writable, "it is not written to")
    assert not writing.done()
    assert done < len(payloads)
    frames = [await asyncio.wait_for(pair.other.next(), WAIT_SECONDS) for _ in payloads]
    assert [frame.payload for frame in frames if frame] == payloads
    await writing
    pair.one.close()
    assert await asyncio.wait_for(pair.other.next(), WAIT_SECONDS) is None


async def test_what_is_closed_lets_its_writers_go() -> None:
    pair = await Pair().open()

    async def write() -> None:
        while not pair.one.closed:
            await pair.one.write(Kind.MESSAGE, bytes(100_000))

    writing = asyncio.create_task(write())
    await eventually(lambda: not pair.one.writable, "it is not written to")
    pair.one.abort()
    await asyncio.wait_for(writing, WAIT_SECONDS)
    pair.other.abort()


async def test_frames_come_in_pieces() -> None:
    one, other = socket.socketpair()
    connection = FrameConnection()
    await asyncio.get_running_loop().create_unix_connection(lambda: connection, sock=one)
    for byte in bytes([1, 0, 0, 0, 3]) + b"abc" + bytes([2, 0, 0, 0, 0]):
        other.send(bytes([byte]))
        await asyncio.sleep(0)
    assert await asyncio.wait_for(connection.next(), WAIT_SECONDS) == (Kind.MESSAGE, b"abc")
    assert await asyncio.wait_for(connection.next(), WAIT_SECONDS) == (Kind.END, b"")
    other.close()
    assert await asyncio.wait_for(connection.next(), WAIT_SECONDS) is None
