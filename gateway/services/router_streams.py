"""Generations at the routers: started, aborted, and moved to another router when theirs is lost.

A moved generation continues as one uninterrupted sequence of deltas: the next router is told what the last one has
delivered, and the seed drawn by the gateway makes both engines sample the same tokens.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence, ValuesView

from gateway.protocol.admin import INITIAL_WEIGHTS
from gateway.requests.state import AudioAppend, ChoiceState, StreamState
from gateway.requests.statistics import RequestStatistics
from gateway.services.convert import from_stream, to_usage
from gateway.services.routers import RouterSession, pick
from quire.errors import DeadlineExceeded, QuireError, Unavailable
from quire.options.server import RpcSecurityOptions
from quire.rpc.peers import NamedPeers
from quire.rpc.status import from_request_error
from quire.v1 import common_pb2, router_pb2

logger = logging.getLogger(__name__)

FLAG = "--router-address"
MAX_MOVES = 3
# How long a stream waits for a router to come up: a restarted one takes a few seconds on a slow machine.
ROUTER_SECONDS = 10.0
_UNREACHABLE = "The router cannot be reached; try again in a moment."


class RouterStreams:
    """Owns the sessions with all routers. Used from the event loop only.

    Contract: each delta of a stream is passed to `on_delta` exactly once and in order, wherever it was generated; a
    stream that cannot continue fails its request. Each attempt of a stream has its own id, valid in one session only,
    so that deltas of an earlier attempt are never taken for a later one's.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        security: RpcSecurityOptions,
        statistics: RequestStatistics,
        on_delta: Callable[[ChoiceState, common_pb2.GenerationDelta], None],
    ) -> None:
        """
        Args:
            addresses: host:port; if the host is a name, each address it resolves to is a router.
        """
        self._statistics = statistics
        self._on_delta = on_delta

        def make(address: str, name: str) -> RouterSession:
            return RouterSession(address, name, security, self._on_frame, self._on_lost)

        self._peers = NamedPeers(FLAG, addresses, make)
        self._placed: dict[int, tuple[StreamState, RouterSession]] = {}
        self._ids = itertools.count(1)
        self._heard = asyncio.Event()

    @property
    def routers(self) -> ValuesView[RouterSession]:
        """All routers, whether they are up or not; a view that follows changes."""
        return self._peers.known

    @property
    def connected(self) -> bool:
        """Whether any router is connected."""
        return any(router.connected for router in self.routers)

    @property
    def num_placed(self) -> int:
        """Number of generations at routers now."""
        return len(self._placed)

    @property
    def queued(self) -> Counter[str]:
        """Number of requests waiting in the routers for a worker, by requested model name."""
        return sum((router.queued for router in self.routers), Counter[str]())

    async def run(self) -> None:
        """Resolves host names and keeps the sessions up until cancelled."""
        await self._peers.run()

    async def wait_up(self, seconds: float, avoid: Collection[str] = ()) -> RouterSession:
        """Waits, for a limited time, until a router not in `avoid` is up, and picks the least busy one.

        Raises:
            Unavailable: none came up in time.
        """
        try:
            async with asyncio.timeout(min(ROUTER_SECONDS, max(0.0, seconds))):
                while (router := pick(self.routers, "", avoid)) is None:
                    self._heard.clear()
                    await self._heard.wait()
                return router
        except TimeoutError:
            raise Unavailable(_UNREACHABLE) from None

    def start(self, stream: StreamState) -> None:
        """Sends a generation to a router; if none is up, it waits in the background for a limited time."""
        self._place(stream, Unavailable(_UNREACHABLE))

    def abort(self, stream: StreamState) -> None:
        """Aborts a generation, wherever it is."""
        if stream.waiting is not None:
            stream.waiting.cancel()
        stream_id = stream.stream_id
        if router := self._take_away(stream):
            router.abort(stream_id)

    def hear(self, stream: StreamState, append: AudioAppend) -> None:
        """Goes on with the recording of a generation."""
        _, router = self._placed.get(stream.stream_id, (stream, None))
        if router is None:
            stream.coming.append(append)
            return
        try:
            router.hear(stream.stream_id, append)
        except QuireError as error:
            stream.owner.fail(error)

    def stop(self, choice: ChoiceState) -> None:
        """Stops generating a choice that a stop string has ended."""
        stream = choice.stream
        del choice.delivered[choice.num_tokens :]
        _, router = self._placed.get(stream.stream_id, (stream, None))
        if router is not None:
            router.stop(stream.stream_id, choice.index % len(stream.choices), choice.num_tokens)
        elif stream.told:
            self._finish(stream)

    def _finish(self, stream: StreamState) -> None:
        """Marks a stream as over: its usage is known, or never will be."""
        if stream.waiting is not None:
            stream.waiting.cancel()
        stream.over = True
        stream.owner.settle()

    def _place(self, stream: StreamState, error: QuireError) -> None:
        """
        Args:
            error: the error that fails the request if no router comes up in time.
        """
        try:
            if not self._try_place(stream):
                stream.waiting = asyncio.create_task(self._place_later(stream, error))
        except QuireError as failure:
            stream.owner.fail(failure)

    async def _place_later(self, stream: StreamState, error: QuireError) -> None:
        try:
            async with asyncio.timeout(min(ROUTER_SECONDS, max(0.0, stream.deadline - time.monotonic()))):
                while not self._try_place(stream):
                    self._heard.clear()
                    await self._heard.wait()
            return
        except TimeoutError:
            failure = error
        except QuireError as refusal:
            failure = refusal
        finally:
            stream.waiting = None
        stream.owner.fail(failure)

    def _try_place(self, stream: StreamState) -> bool:
        """Sends the generation, with its progress so far, to a router; returns False if none is up.

        Raises:
            DeadlineExceeded: the request's time has run out.
            Overloaded: the router does not keep up with reading.
        """
        keys = stream.prompt.block_keys
        key = stream.owner.request.session_id or (f"{keys[0]:x}" if keys else "")
        router = pick(self.routers, key, stream.refused_by)
        if router is None:
            return False
        if (seconds := stream.deadline - time.monotonic()) <= 0:
            raise DeadlineExceeded("The request did not finish within its time limit.")
        stream_id = next(self._ids)
        router.start(stream_id, from_stream(stream, timeout_ms=max(1, int(seconds * 1000))))
        stream.stream_id, stream.answered = stream_id, False
        self._placed[stream_id] = stream, router
        router.live += 1
        self._statistics.streams_moved += stream.moves > 0
        coming, stream.coming = stream.coming, []
        for append in coming:
            self.hear(stream, append)
        return True

    def _take_away(self, stream: StreamState) -> RouterSession | None:
        """Detaches the generation from its router; returns that router, or None if it had none."""
        _, router = self._placed.pop(stream.stream_id, (stream, None))
        stream.stream_id = 0
        if router is not None:
            router.live -= 1
        return router

    def _on_frame(self, router: RouterSession, frame: router_pb2.RouterServiceSessionResponse) -> None:
        self._heard.set()
        for delta in frame.deltas:
            stream, owner = self._placed.get(delta.stream_id, (None, None))
            if stream is None or owner is not router:
                continue
            if delta.HasField("error"):
                self._on_error(stream, router, from_request_error(delta.error))
                continue
            stream.answered = True
            if delta.is_final:  # the router has forgotten it: there is nothing left to abort
                self._take_away(stream)
                stream.usage = to_usage(delta.usage)
            aborted = delta.finish_reason == common_pb2.FINISH_REASON_ABORT
            for choice in stream.choices if aborted else [stream.choices[delta.choice_index]]:
                if not (choice.ended or choice.finished):
                    if choice.versions is not None and delta.token_ids:
                        choice.versions.add(delta.weight_version or INITIAL_WEIGHTS, len(choice.delivered))
                    choice.delivered.extend(delta.token_ids)
                    choice.finished = bool(delta.finish_reason)
                    self._on_delta(choice, delta)
            if delta.is_final:
                self._finish(stream)

    def _on_error(self, stream: StreamState, router: RouterSession, error: QuireError) -> None:
        """Tries another router if the stream has not begun: this one may be draining, or know no worker yet."""
        refused_by = (*stream.refused_by, router.address)
        self._take_away(stream)
        if stream.told:
            self._finish(stream)
        elif isinstance(error, Unavailable) and not stream.answered and pick(self.routers, "", refused_by):
            stream.refused_by = refused_by
            self._move(stream, error)
        else:
            stream.owner.fail(error)

    def _on_lost(self, router: RouterSession, error: QuireError) -> None:
        lost = [stream for stream, owner in self._placed.values() if owner is router]
        if lost:
            logger.warning("router %s is lost with %d requests: %s", router.address, len(lost), error.message)
        # Total waiting time is lowest when the streams with the least to recompute go first.
        for stream in sorted(lost, key=_known_tokens):
            self._take_away(stream)
            stream.refused_by = ()
            self._move(stream, Unavailable("The router was lost. The answer is incomplete; send the request again."))

    def _move(self, stream: StreamState, error: QuireError) -> None:
        """Continues a generation at another router, or fails its request with `error`."""
        if stream.told:
            self._finish(stream)
        if stream.owner.closed or stream.over:
            return
        if stream.moves == MAX_MOVES or stream.goes_on:  # what has been heard is kept at the worker alone
            stream.owner.fail(error)
            return
        stream.moves += 1
        self._place(stream, error)


def _known_tokens(stream: StreamState) -> int:
    return stream.prompt.num_tokens + sum(len(choice.delivered) for choice in stream.choices)
