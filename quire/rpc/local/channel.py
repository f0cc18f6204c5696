"""The client side: channels whose sessions use a Unix socket if the server has one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

import grpc
import msgspec

from quire.error_tables import CODE_BY_NUMBER
from quire.rpc.local.frames import Call, End, FrameConnection, Kind, Metadata
from quire.rpc.local.place import is_own_user

_end = msgspec.msgpack.Decoder(End)


@dataclass(frozen=True)
class _Session:
    """A session method of a service."""

    name: str
    serialize: Callable[[Any], bytes]
    deserialize: Callable[[bytes], Any]


class LocalChannel:
    """A gRPC channel to a server on this machine, which diverts sessions to a Unix socket."""

    def __init__(self, channel: grpc.aio.Channel, place: str) -> None:
        """
        Args:
            place: address of the server's Unix socket, if it has one.
        """
        self._channel = channel
        self._place = place

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    def stream_stream(
        self,
        method: str,
        request_serializer: Callable[[Any], bytes],
        response_deserializer: Callable[[bytes], Any],
        **options: Any,
    ) -> Callable[..., SessionCall]:
        """See grpc.aio.Channel."""
        over_grpc = self._channel.stream_stream(method, request_serializer, response_deserializer, **options)
        session = _Session(method, request_serializer, response_deserializer)
        return lambda *, metadata=(): SessionCall(self._place, session, metadata, lambda: over_grpc(metadata=metadata))


class SessionCall:
    """A session over a Unix socket, or over gRPC if nothing listens there.

    It implements the part of grpc.aio.StreamStreamCall that `SessionLink` uses, to be called once it is connected.
    """

    def __init__(
        self, place: str, session: _Session, metadata: Metadata, over_grpc: Callable[[], grpc.aio.StreamStreamCall]
    ) -> None:
        self._place = place
        self._session = session
        self._metadata = metadata
        self._over_grpc = over_grpc
        self._call: Any = None

    async def wait_for_connection(self) -> None:
        """Returns once the call is running.

        Raises:
            AioRpcError: the call was refused.
        """
        connection = await _connect(self._place)
        self._call = self._over_grpc() if connection is None else _LocalCall(connection, self._session, self._metadata)
        await self._call.wait_for_connection()

    def read(self) -> Awaitable[Any]:
        """The next message; grpc.aio.EOF at the end.

        Raises:
            AioRpcError: the call failed.
        """
        return cast("Awaitable[Any]", self._call.read())

    def write(self, message: Any) -> Awaitable[None]:
        """Sends a message.

        Raises:
            InvalidStateError: the call has ended.
        """
        return cast("Awaitable[None]", self._call.write(message))

    def code(self) -> Awaitable[grpc.StatusCode]:
        """The status that the call ended with."""
        return cast("Awaitable[grpc.StatusCode]", self._call.code())

    def cancel(self) -> None:
        """Ends the call, on whichever transport it runs."""
        if self._call is not None:
            self._call.cancel()


class _LocalCall:
    """See SessionCall."""

    def __init__(self, connection: FrameConnection, session: _Session, metadata: Metadata) -> None:
        self._connection = connection
        self._session = session
        self._metadata = metadata

    async def wait_for_connection(self) -> None:
        wanted = Call(self._session.name, self._metadata)
        await self._connection.write(Kind.BEGIN, msgspec.msgpack.encode(wanted))
        frame = await self._connection.next()
        if frame is None or frame.kind == Kind.END:
            raise _failure(frame.payload if frame else b"")

    async def read(self) -> Any:
        frame = await self._connection.next()
        if frame is not None and frame.kind == Kind.MESSAGE:
            return self._session.deserialize(frame.payload)
        failure = _failure(frame.payload if frame else b"")
        if failure.code() is grpc.StatusCode.OK:
            return grpc.aio.EOF
        raise failure

    async def write(self, message: Any) -> None:
        if self._connection.closed:
            raise asyncio.InvalidStateError("the call has ended")
        await self._connection.write(Kind.MESSAGE, self._session.serialize(message))

    async def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.OK  # any other status was raised

    def cancel(self) -> None:
        self._connection.abort()


def _failure(payload: bytes) -> grpc.aio.AioRpcError:
    """The end of a call as the error that gRPC raises; an empty payload means that the server vanished."""
    end = _end.decode(payload) if payload else End(grpc.StatusCode.UNAVAILABLE.value[0], "the connection was closed")
    code = CODE_BY_NUMBER.get(end.code, grpc.StatusCode.INTERNAL)
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*end.trailers), details=end.details)


async def _connect(place: str) -> FrameConnection | None:
    """Connects to the server that listens there; None if there is none, or it runs as another user."""
    loop = asyncio.get_running_loop()
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    found.setblocking(False)
    try:
        await loop.sock_connect(found, place)
        if not is_own_user(found):
            raise PermissionError
        _, connection = await loop.create_unix_connection(FrameConnection, sock=found)
    except OSError:
        found.close()
        return None
    except BaseException:
        found.close()
        raise
    return connection
