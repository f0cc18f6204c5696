"""The server side: sessions of gRPC services over a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, NoReturn

import grpc
import msgspec

from quire.rpc.local.frames import Call, End, FrameConnection, Kind, Metadata, Trailers
from quire.rpc.local.place import is_own_user, own_place
from quire.rpc.settings import CONNECT_SECONDS

logger = logging.getLogger(__name__)

_call = msgspec.msgpack.Decoder(Call)
_BACKLOG = 128


class LocalServer(grpc.aio.Server):
    """A gRPC server whose sessions are also available over Unix sockets that belong to its ports without TLS."""

    def __init__(
        self, server: grpc.aio.Server, wrap: Callable[[str, grpc.RpcMethodHandler], grpc.RpcMethodHandler]
    ) -> None:
        """
        Args:
            wrap: wraps a method's handler as the server's interceptors do.
        """
        self._server = server
        self._wrap = wrap
        self._handlers: dict[str, grpc.RpcMethodHandler] = {}
        self._places: list[str] = []
        self._listeners: list[asyncio.Server] = []
        self._sessions: set[asyncio.Task[None]] = set()

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        """See grpc.aio.Server."""
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, grpc.RpcMethodHandler]) -> None:
        """See grpc.aio.Server."""
        self._server.add_registered_method_handlers(service, handlers)
        for name, handler in handlers.items():
            if handler.stream_stream:
                method = f"/{service}/{name}"
                self._handlers[method] = self._wrap(method, handler)

    def add_insecure_port(self, address: str) -> int:
        """See grpc.aio.Server."""
        port: int = self._server.add_insecure_port(address)
        self._places.append(own_place(address.rpartition(":")[0].strip("[]"), port))
        return port

    def add_secure_port(self, address: str, credentials: grpc.ServerCredentials) -> int:
        """See grpc.aio.Server."""
        return int(self._server.add_secure_port(address, credentials))

    async def start(self) -> None:
        """See grpc.aio.Server."""
        await self._server.start()
        for place in filter(None, self._places):
            await self._listen(place)

    async def stop(self, grace: float | None) -> None:
        """See grpc.aio.Server."""
        for listener in self._listeners:
            listener.close()
        await asyncio.gather(self._server.stop(grace), self._end_sessions(grace or 0.0))

    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        """See grpc.aio.Server."""
        return bool(await self._server.wait_for_termination(timeout))

    async def _listen(self, place: str) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(place)
        except OSError as error:  # another process has the name but not the port; gRPC still works
            listener.close()
            logger.warning("callers on this machine must use gRPC: %s", error)
            return
        server = await asyncio.get_running_loop().create_unix_server(self._accept, sock=listener, backlog=_BACKLOG)
        self._listeners.append(server)

    async def _end_sessions(self, grace: float) -> None:
        if self._sessions:
            await asyncio.wait(self._sessions, timeout=grace)
        for session in self._sessions:
            session.cancel()
        await asyncio.gather(*self._sessions, return_exceptions=True)

    def _accept(self) -> FrameConnection:
        connection = FrameConnection(lambda: session.cancel())
        session = asyncio.get_running_loop().create_task(self._serve(connection))
        self._sessions.add(session)
        session.add_done_callback(self._sessions.discard)
        return connection

    async def _serve(self, connection: FrameConnection) -> None:
        """Serves one call, from its first frame to its last."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                frame = await connection.next()
            if frame is not None and is_own_user(connection.transport.get_extra_info("socket")):
                await self._answer(connection, _call.decode(frame.payload))
        except (TimeoutError, msgspec.MsgspecError):
            logger.warning("a caller on this machine did not send a valid call")
        finally:
            connection.close()

    async def _answer(self, connection: FrameConnection, call: Call) -> None:
        handler = self._handlers.get(call.method)
        if handler is None:
            await LocalContext(connection, call.metadata, bytes).end(grpc.StatusCode.UNIMPLEMENTED, "no such session")
            return
        context = LocalContext(connection, call.metadata, handler.response_serializer)
        answer = handler.stream_stream(_messages(connection, handler.request_deserializer), context)
        with contextlib.suppress(grpc.aio.AbortError):  # the caller knows already
            if asyncio.iscoroutine(answer):
                await answer
            else:
                async for message in answer:
                    await context.write(message)
            await context.end(grpc.StatusCode.OK)


class LocalContext:
    """Implements the part of grpc.aio.ServicerContext that sessions and the interceptor around them use."""

    def __init__(self, connection: FrameConnection, metadata: Metadata, serialize: Callable[[Any], bytes]) -> None:
        self._connection = connection
        self._metadata = metadata
        self._serialize = serialize

    def invocation_metadata(self) -> Metadata:
        """The metadata that the caller sent."""
        return self._metadata

    def trailing_metadata(self) -> Trailers:
        """Always empty: none is set before the call ends."""
        return ()

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """Tells the caller that its call is running, which is all that a session needs."""
        await self._connection.write(Kind.BEGIN)

    async def write(self, message: Any) -> None:
        """Sends a message."""
        await self._connection.write(Kind.MESSAGE, self._serialize(message))

    async def abort(self, code: grpc.StatusCode, details: str, trailing_metadata: Trailers) -> NoReturn:
        """Ends the call with an error.

        Raises:
            AbortError: always.
        """
        await self.end(code, details, trailing_metadata)
        raise grpc.aio.AbortError(details)

    async def end(self, code: grpc.StatusCode, details: str = "", trailers: Trailers = ()) -> None:
        """Tells the caller how the call ended."""
        await self._connection.write(Kind.END, msgspec.msgpack.encode(End(code.value[0], details, trailers)))


async def _messages(connection: FrameConnection, deserialize: Callable[[bytes], Any]) -> AsyncIterator[Any]:
    while (frame := await connection.next()) is not None:
        yield deserialize(frame.payload)
