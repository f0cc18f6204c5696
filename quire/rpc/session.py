"""Sessions: many streams batched on one bidirectional gRPC stream.

`Outbox` collects the entries posted between two writes into one frame, so a busy stream sends few large messages and an
idle one sends small ones at once. `SessionLink` is the client side of a session: it connects, reconnects and notices
when the peer falls silent.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

import grpc

from quire.errors import Internal, Overloaded, QuireError, Unavailable
from quire.rpc.settings import CONNECT_SECONDS, HEARTBEAT_SECONDS, LATE_SECONDS
from quire.rpc.status import from_rpc_error

logger = logging.getLogger(__name__)

Out = TypeVar("Out")
In = TypeVar("In")

# Unread entries after which a peer's session is given up: far more than a healthy peer ever has.
MAX_PENDING_ITEMS = 65536
MAX_FRAME_BYTES = 4 * 2**20  # a frame that would exceed this is followed by another one
_BACKOFF_SECONDS = (0.05, 0.1, 0.2, 0.5, 1.0)


class Outbox(Generic[Out]):
    """Frames waiting to be sent. Used from one event loop."""

    def __init__(self, new_frame: Callable[[], Out]) -> None:
        self._new_frame = new_frame
        self._frame = new_frame()
        self._full: deque[Out] = deque()  # frames to send before it
        self._items = 0
        self._bytes = 0
        self._ready = asyncio.Event()

    def post(self, items: int = 1, num_bytes: int = 0, *, waits: bool = False) -> Out:
        """Returns the frame that is sent next; the caller adds `items` entries to it right away.

        Args:
            items: number of entries; 0 for entries that end something posted before, which are never refused.
            num_bytes: size of the entries if they may be large, so that a frame does not exceed the message limit.
            waits: whether the entries may wait for the next post, or for `flush`, instead of triggering a send.

        Raises:
            Overloaded: the peer does not read, and too much is waiting for it.
        """
        if self._items + items > MAX_PENDING_ITEMS:
            raise Overloaded("Too much is waiting for a peer that does not read its frames; try again in a moment.")
        self._items += items
        if self._bytes and self._bytes + num_bytes > MAX_FRAME_BYTES:
            self._full.append(self._frame)
            self._frame, self._bytes = self._new_frame(), 0
        self._bytes += num_bytes
        if not waits:
            self._ready.set()
        return self._frame

    def flush(self) -> None:
        """Triggers a send of entries that were waiting for others."""
        if self._items:
            self._ready.set()

    @property
    def pending(self) -> bool:
        """Whether a frame is due to be sent."""
        return self._ready.is_set()

    async def next(self, timeout: float | None = None) -> Out | None:
        """Takes the next frame once it is due; None if `timeout` seconds pass before."""
        if timeout is None:
            await self._ready.wait()
        elif not self._ready.is_set():
            try:
                async with asyncio.timeout(timeout):
                    await self._ready.wait()
            except TimeoutError:
                return None
        if self._full:
            return self._full.popleft()
        frame, self._frame, self._items, self._bytes = self._frame, self._new_frame(), 0, 0
        self._ready.clear()
        return frame


class SessionLink(Generic[Out, In]):
    """The client side of a session with one peer, maintained while `run` runs.

    Contract: `on_connected()` is called when frames can be posted; `on_frame(frame)` for each frame of the peer, in
    order; `on_lost(error)` once after each connection that had been `connected`. Frames posted to a lost connection are
    dropped: the owner decides in `on_lost` what becomes of the streams they belonged to. When `on_frame` raises, the
    connection is given up as lost.
    """

    def __init__(
        self,
        name: str,
        open_call: Callable[[], grpc.aio.StreamStreamCall],
        new_frame: Callable[[], Out],
        on_frame: Callable[[In], None],
        on_lost: Callable[[QuireError], None],
        *,
        on_connected: Callable[[], None],
        lost_seconds: float,
        wait_for_peer: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """
        Args:
            name: the peer's name in logs and errors.
            open_call: starts the gRPC stream.
            lost_seconds: seconds of silence after which the connection is given up.
            wait_for_peer: called before each attempt to connect; returns once an attempt is worthwhile. None if that is
                unknown.
        """
        self.name = name
        self._open_call = open_call
        self._new_frame = new_frame
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._on_connected = on_connected
        self._lost_seconds = lost_seconds
        self._wait_for_peer = wait_for_peer
        # Why the last connection, or the last attempt to connect, ended.
        self.error: QuireError | None = None
        self._outbox: Outbox[Out] | None = None
        self._last_frame = 0.0
        self._fault = ""  # why the connection is given up
        self._beat: asyncio.Future[None] | None = None  # resolves at the end of the current beat

    @property
    def connected(self) -> bool:
        """Whether frames can be posted."""
        return self._outbox is not None

    @property
    def late(self) -> bool:
        """Whether the peer's heartbeat is overdue: it should get no new work."""
        return time.monotonic() - self._last_frame > LATE_SECONDS

    def give_up(self, fault: str = "answers but does no work") -> None:
        """Drops the connection as if it were lost, and reconnects: the peer answers but does not work."""
        self._fault = fault
        self._end_beat()

    def post(self, items: int = 1, num_bytes: int = 0, *, waits: bool = False) -> Out:
        """Returns the frame that is sent next, to be added to; see Outbox. Waiting entries are sent with the next beat
        at the latest.

        Raises:
            Unavailable: there is no connection.
            Overloaded: see Outbox.
        """
        if self._outbox is None:
            raise Unavailable(f"{self.name} cannot be reached; try again in a moment.")
        return self._outbox.post(items, num_bytes, waits=waits)

    async def run(self) -> None:
        """Maintains the session until cancelled."""
        failures = 0
        while True:
            if self._wait_for_peer is not None:
                await self._wait_for_peer()
            started = time.monotonic()
            error = await self._connect_once()
            failures = 0 if time.monotonic() - started > self._lost_seconds else failures + 1
            logger.debug("session with %s ended: %s", self.name, error)
            await asyncio.sleep(_BACKOFF_SECONDS[min(failures, len(_BACKOFF_SECONDS) - 1)])

    async def _connect_once(self) -> QuireError:
        """Runs one connection from start to end; returns why it ended."""
        call = self._open_call()
        error: QuireError = Unavailable(f"The session with {self.name} was closed.")
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                await call.wait_for_connection()
            error = await self._pump(call)
        except grpc.aio.AioRpcError as failure:
            error = from_rpc_error(failure)
        except TimeoutError:
            error = Unavailable(f"{self.name} did not answer within {CONNECT_SECONDS:g} s.")
        finally:
            call.cancel()
            was_connected, self._outbox = self.connected, None
            self.error = error
        if was_connected:
            self._report_loss(error)
        return error

    def _report_loss(self, error: QuireError) -> None:
        logger.info("session with %s lost: %s", self.name, error)
        try:
            self._on_lost(error)
        except Exception:  # an error in the owner must not keep the link from reconnecting
            logger.exception("session with %s: its end could not be handled", self.name)

    async def _pump(self, call: grpc.aio.StreamStreamCall) -> QuireError:
        """Moves frames both ways until one side ends; returns why."""
        self._outbox = Outbox(self._new_frame)
        self._last_frame = time.monotonic()
        self._on_connected()
        jobs = (self._read(call), self._write(call, self._outbox), self._watch(self._outbox))
        tasks = [asyncio.create_task(job) for job in jobs]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
        except grpc.aio.AioRpcError as failure:
            return from_rpc_error(failure)
        except Exception:
            logger.exception("session with %s: a frame could not be handled", self.name)
            return Internal(f"A frame of {self.name} could not be handled; the log has the details.")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, call: grpc.aio.StreamStreamCall) -> QuireError:
        frame: Any
        while (frame := await call.read()) is not grpc.aio.EOF:
            self._last_frame = time.monotonic()
            self._on_frame(frame)
        code = await call.code()
        return Unavailable(f"{self.name} ended the session ({code.name}).")

    async def _write(self, call: grpc.aio.StreamStreamCall, outbox: Outbox[Out]) -> QuireError:
        while True:
            frame = await outbox.next()
            try:
                await call.write(frame)
            except asyncio.InvalidStateError:  # the call has ended; the reader knows why
                await asyncio.sleep(CONNECT_SECONDS)
                return Unavailable(f"{self.name} ended the session.")

    async def _next_beat(self) -> None:
        """Waits for the next beat, or until the connection is given up: like asyncio.sleep, without a task for each
        beat."""
        loop = asyncio.get_running_loop()
        self._beat, timer = loop.create_future(), loop.call_later(HEARTBEAT_SECONDS, self._end_beat)
        try:
            await self._beat
        finally:
            timer.cancel()

    def _end_beat(self) -> None:
        if self._beat is not None and not self._beat.done():
            self._beat.set_result(None)

    async def _watch(self, outbox: Outbox[Out]) -> QuireError:
        """Measures silence in beats rather than in time: while this process itself stood still, it could not receive
        anything."""
        self._fault = ""
        silence = 0.0
        while silence < self._lost_seconds:
            heard = self._last_frame
            await self._next_beat()
            if self._fault:
                return Unavailable(f"{self.name} {self._fault}.")
            outbox.flush()
            silence = silence + HEARTBEAT_SECONDS if self._last_frame == heard else 0.0
        return Unavailable(f"{self.name} sent no heartbeat for {self._lost_seconds:g} s.")
