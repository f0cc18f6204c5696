"""The router replicas: the session with each, and the choice of one for a request."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Callable, Collection
from typing import Any

import grpc

from gateway.requests.state import AudioAppend
from gateway.services.replica import Replica
from quire.errors import QuireError, Unavailable
from quire.options.server import RpcSecurityOptions
from quire.rpc.channel import call_metadata, open_channel, session_channel
from quire.rpc.images import from_images
from quire.rpc.status import from_rpc_error
from quire.v1 import admin_pb2_grpc, common_pb2, router_pb2, router_pb2_grpc

# A conversation stays with its router until that has more than _SHARES times its fair share of streams, plus _SLACK: a
# prefix common to all requests must not leave the other routers idle.
_SHARES, _SLACK = 1.25, 16


class RouterSession(Replica[router_pb2.RouterServiceSessionRequest, router_pb2.RouterServiceSessionResponse]):
    """One router replica and the session with it."""

    def __init__(
        self,
        address: str,
        server_name: str,
        security: RpcSecurityOptions,
        on_frame: Callable[[RouterSession, router_pb2.RouterServiceSessionResponse], None],
        on_lost: Callable[[RouterSession, QuireError], None],
    ) -> None:
        """
        Args:
            server_name: the host name it was found by, if any, which its certificate must match.
        """
        self.address = address
        # As last reported: whether it has ready workers, and how many requests wait in it for one, by model name.
        self.has_workers = False
        self.queued = Counter[str]()
        self._security = security
        self._num_calls = 0
        channel = open_channel(address, security, server_name)
        self.stub = router_pb2_grpc.RouterServiceStub(channel)
        self.admin_stub = admin_pb2_grpc.RouterAdminServiceStub(channel)
        sessions = router_pb2_grpc.RouterServiceStub(session_channel(channel, address, security))

        def take(frame: router_pb2.RouterServiceSessionResponse) -> None:
            if frame.HasField("ready_workers"):
                self.has_workers, self.draining = frame.ready_workers > 0, frame.draining
                self.queued = Counter({queue.model: queue.requests for queue in frame.queues})
            on_frame(self, frame)

        def lose(error: QuireError) -> None:
            self.queued.clear()
            on_lost(self, error)

        super().__init__(
            "The router", channel, lambda: sessions.Session(metadata=call_metadata(security)),
            router_pb2.RouterServiceSessionRequest, take, lose,
        )  # fmt: skip

    def start(self, stream_id: int, generation: common_pb2.Generation) -> None:
        """Starts a generation, or continues one from the progress it contains.

        Raises:
            Unavailable: there is no connection.
            Overloaded: the router does not keep up with reading.
        """
        frame = self.link.post(num_bytes=generation.ByteSize())
        frame.starts.add(stream_id=stream_id).generation.CopyFrom(generation)

    def hear(self, stream_id: int, append: AudioAppend) -> None:
        """Goes on with the recording of a generation; a lost session has ended it already.

        Raises:
            Overloaded: the router does not keep up with reading.
        """
        (audio,) = from_images([append.audio])
        with contextlib.suppress(Unavailable):
            frame = self.link.post(num_bytes=append.audio.num_bytes)
            frame.appends.add(stream_id=stream_id, audio=audio, is_last=append.is_last)

    @property
    def busy(self) -> bool:
        """Whether it works on streams or calls."""
        return super().busy or self._num_calls > 0

    async def call(self, method: Callable[..., Any], request: Any, seconds: float) -> Any:
        """Makes a call of one of the stubs' methods.

        Raises:
            QuireError: it failed, or took longer than `seconds`.
        """
        self._num_calls += 1
        try:
            return await method(request, metadata=call_metadata(self._security), timeout=seconds)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        finally:
            self._num_calls -= 1

    async def pool(self, request: common_pb2.PoolRequest, seconds: float) -> common_pb2.PoolResponse:
        """Runs a request of a pooling model.

        Raises: see `call`.
        """
        self.live += 1
        try:
            answer: common_pb2.PoolResponse = await self.call(self.stub.Pool, request, seconds)
        finally:
            self.live -= 1
        return answer

    def abort(self, stream_id: int) -> None:
        """Aborts a generation; a lost session has aborted it already."""
        with contextlib.suppress(Unavailable):
            self.link.post(0).abort_stream_ids.append(stream_id)

    def stop(self, stream_id: int, choice_index: int, num_output_tokens: int) -> None:
        """Stops one sequence of a generation; a lost session has stopped the whole generation."""
        with contextlib.suppress(Unavailable):
            self.link.post(0).stops.add(
                stream_id=stream_id, choice_index=choice_index, num_output_tokens=num_output_tokens
            )


def pick(routers: Collection[RouterSession], key: str, avoid: Collection[str]) -> RouterSession | None:
    """Returns the router for a request; None if none is up.

    Args:
        key: requests with the same key go to the same router while it is up and not overloaded; if empty, the least
            busy router is chosen.
        avoid: addresses to exclude.
    """
    candidates = [router for router in routers if router.up and router.address not in avoid]
    # A router without workers would queue the request until it has one.
    candidates = [router for router in candidates if router.has_workers] or candidates
    candidates = [router for router in candidates if not router.leaving] or candidates
    if not candidates:
        return None
    if key:
        # Rendezvous hashing: when a router comes or goes, only its own keys move.
        favourite = max(candidates, key=lambda router: hashlib.sha256(f"{router.address} {key}".encode()).digest())
        if favourite.live <= _SLACK + _SHARES * sum(router.live for router in candidates) / len(candidates):
            return favourite
    return min(candidates, key=lambda router: router.live)
