"""The replicas of the tokenizer service, found by address or host name: sessions and unary calls."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Callable, Collection, Sequence, ValuesView
from typing import Any

import grpc

from gateway.requests.token_ids_only import needs_text
from gateway.services.replica import Replica
from quire.errors import DeadlineExceeded, QuireError, Unavailable
from quire.options.server import RpcSecurityOptions
from quire.rpc.channel import call_metadata, open_channel, session_channel
from quire.rpc.discovery import Resolver, resolve_host
from quire.rpc.peers import NamedPeers
from quire.rpc.settings import CALL_SECONDS
from quire.rpc.status import from_rpc_error
from quire.v1 import tokenizer_pb2, tokenizer_pb2_grpc

logger = logging.getLogger(__name__)

FLAG = "--tokenizer-address"
_RETRY_SECONDS = 0.05

TextFrame = tokenizer_pb2.DetokenizeSessionResponse


class TokenizerReplica(Replica[tokenizer_pb2.DetokenizeSessionRequest, TextFrame]):
    """One replica of the tokenizer service."""

    def __init__(
        self,
        address: str,
        server_name: str,
        security: RpcSecurityOptions,
        on_frame: Callable[[TextFrame], None],
        on_lost: Callable[[TokenizerReplica, QuireError], None],
    ) -> None:
        """
        Args:
            server_name: the host name it was found by, if any, which its certificate must match.
        """
        self.address = address
        self._security = security
        channel = open_channel(address, security, server_name)
        self._stub = tokenizer_pb2_grpc.TokenizerServiceStub(channel)
        sessions = tokenizer_pb2_grpc.TokenizerServiceStub(session_channel(channel, address, security))
        super().__init__(
            "The tokenizer service", channel,
            lambda: sessions.DetokenizeSession(metadata=call_metadata(security)),
            tokenizer_pb2.DetokenizeSessionRequest, on_frame, lambda error: on_lost(self, error),
        )  # fmt: skip

    def open(self, opening: tokenizer_pb2.DetokenizeOpen) -> None:
        """Opens a sequence. A new one does not need a frame of its own: it is sent with the next one.

        Raises:
            Unavailable: there is no connection.
            Overloaded: too much is queued for it.
        """
        self.link.post(num_bytes=opening.ByteSize(), waits=not opening.history_token_ids).opens.append(opening)

    def add(self, stream_id: int, num_bytes: int) -> tokenizer_pb2.DetokenizeTokens:
        """Returns a message to fill with the next tokens of an open sequence.

        If it cannot be sent, the session is lost or given up: a sequence must not continue with some of its tokens
        missing.
        """
        try:
            return self.link.post(num_bytes=num_bytes).tokens.add(stream_id=stream_id)
        except QuireError:
            self.link.give_up("does not read what it is sent")
            return tokenizer_pb2.DetokenizeTokens()

    def close(self, stream_id: int) -> None:
        """Forgets a sequence; a lost session has forgotten it already."""
        with contextlib.suppress(Unavailable):
            self.link.post(0).close_stream_ids.append(stream_id)

    async def call(self, method: str, request: Any, timeout: float) -> Any:
        """Makes a unary call.

        Raises:
            QuireError: it failed.
        """
        self.live += 1
        try:
            return await getattr(self._stub, method)(request, metadata=call_metadata(self._security), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        finally:
            self.live -= 1

    async def stream(self, method: str, request: Any, timeout: float) -> AsyncGenerator[Any, None]:
        """Makes a call with several responses, and yields them.

        Raises:
            QuireError: it failed.
        """
        self.live += 1
        call = getattr(self._stub, method)(request, metadata=call_metadata(self._security), timeout=timeout)
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from error
        finally:
            call.cancel()
            self.live -= 1

    def _take_frame(self, frame: TextFrame) -> None:
        self.draining = frame.draining
        super()._take_frame(frame)


class Tokenizers:
    """Owns the sessions with all replicas. Used from the event loop only."""

    def __init__(
        self,
        addresses: Sequence[str],
        security: RpcSecurityOptions,
        on_frame: Callable[[TextFrame], None],
        on_lost: Callable[[TokenizerReplica, QuireError], None],
        resolve: Resolver = resolve_host,
    ) -> None:
        """
        Args:
            addresses: host:port; if the host is a name, each address it resolves to is a replica. If empty, there is no
                tokenizer service, and nothing waits for one.
        """
        self._on_frame = on_frame

        def make(address: str, name: str) -> TokenizerReplica:
            return TokenizerReplica(address, name, security, self._take_frame, on_lost)

        self.skipped = not addresses  # there is no tokenizer service
        self._replicas = NamedPeers(FLAG, addresses, make, resolve)
        self._heard = asyncio.Event()

    @property
    def known(self) -> ValuesView[TokenizerReplica]:
        """All replicas, whether they are up or not."""
        return self._replicas.known

    @property
    def connected(self) -> bool:
        """Whether a replica is connected, or none is needed."""
        return self.skipped or any(replica.connected for replica in self.known)

    async def run(self) -> None:
        """Resolves host names and keeps the sessions up until cancelled."""
        await self._replicas.run()

    def pick(self, avoid: Collection[TokenizerReplica] = ()) -> TokenizerReplica | None:
        """Returns the least busy replica, preferring ones not in `avoid` and not stopping; None if none is up."""
        return min(
            (replica for replica in self.known if replica.up),
            key=lambda replica: (replica in avoid, replica.leaving, replica.live),
            default=None,
        )

    async def wait_up(self, seconds: float, avoid: Collection[TokenizerReplica] = ()) -> TokenizerReplica:
        """Waits until a replica is up, and picks one.

        Raises:
            Unavailable: none came up within `seconds`.
            InvalidRequest: there is no tokenizer service.
        """
        if self.skipped:
            raise needs_text("This request")
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                while not (replica := self.pick(avoid)):
                    self._heard.clear()
                    await self._heard.wait()
                return replica
        except TimeoutError:
            raise Unavailable("The tokenizer service cannot be reached; try again in a moment.") from None

    async def call(self, method: str, request: Any, seconds: float | None = None) -> Any:
        """Makes a unary call, retrying at other replicas until the deadline: all of the calls are idempotent.

        Args:
            seconds: timeout; None means CALL_SECONDS.

        Raises:
            QuireError: it failed.
        """
        seconds = CALL_SECONDS if seconds is None else seconds
        deadline = time.monotonic() + seconds
        failed: list[TokenizerReplica] = []
        while True:
            replica = await self.wait_up(deadline - time.monotonic(), failed)
            try:
                return await replica.call(method, request, deadline - time.monotonic())
            except Unavailable as error:
                logger.debug("tokenizer service %s: %s failed: %s", replica.address, method, error.message)
                failed.append(replica)
                await asyncio.sleep(min(1.0, _RETRY_SECONDS * 2 ** len(failed)))
            except DeadlineExceeded:
                raise _too_slow(seconds) from None

    async def call_each(self, method: str, request: Any, seconds: float) -> None:
        """Makes a unary call to every replica that is up.

        Raises:
            QuireError: a call failed.
        """
        await asyncio.gather(*(replica.call(method, request, seconds) for replica in self.known if replica.up))

    async def stream(self, method: str, request: Any, seconds: float) -> AsyncGenerator[Any, None]:
        """Makes a call with several responses, and yields them; retries at other replicas until the first has come.

        Args:
            seconds: timeout for all responses together.

        Raises:
            QuireError: it failed.
        """
        deadline, has_begun = time.monotonic() + seconds, False
        failed: list[TokenizerReplica] = []
        while True:
            replica = await self.wait_up(deadline - time.monotonic(), failed)
            try:
                left = deadline - time.monotonic()
                async with contextlib.aclosing(replica.stream(method, request, left)) as responses:
                    async for response in responses:
                        has_begun = True
                        yield response
                return
            except Unavailable as error:
                if has_begun:
                    raise
                logger.debug("tokenizer service %s: %s failed: %s", replica.address, method, error.message)
                failed.append(replica)
                await asyncio.sleep(min(1.0, _RETRY_SECONDS * 2 ** len(failed)))
            except DeadlineExceeded:
                raise _too_slow(seconds) from None

    def _take_frame(self, frame: TextFrame) -> None:
        self._heard.set()
        self._on_frame(frame)


def _too_slow(seconds: float) -> DeadlineExceeded:
    return DeadlineExceeded(f"The tokenizer service did not answer within {seconds:g} s; try again in a moment.")
