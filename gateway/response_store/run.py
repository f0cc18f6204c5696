"""Runs a response that is stored as it progresses; readers may come and go."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Protocol

import msgspec
from starlette.types import Receive

from gateway.answers.collecting import updates
from gateway.answers.connection import while_connected
from gateway.answers.deltas import ChoiceUpdate
from gateway.answers.queue import AnswerQueue
from gateway.answers.stream import EventWriter
from gateway.protocol.responses import ResponseBody
from gateway.response_store.base import EventChunk, NewResponse, ResponseStore
from quire.errors import Internal, QuireError

logger = logging.getLogger(__name__)

# How often new events are stored, and stop requests are checked.
BEAT_SECONDS = 0.5
_LOOK_SECONDS = 1.0  # how often a waiting reader checks that its client is connected
_ATTEMPTS = 5  # at storing the end of a response
_MOST_EVENTS = 1024  # per read: late readers get them in several reads


class ResponseWriter(EventWriter[ChoiceUpdate], Protocol):
    """Writes a response's events, and updates its body accordingly."""

    body: ResponseBody


class EventLog(Protocol):
    """The events of a response, from the first one on."""

    async def read(self, after: int, timeout: float) -> list[bytes] | None:
        """Returns the events with larger numbers, waiting for one; an empty list at the end; None on timeout."""


class Run:
    """Reads a response's updates to the end, whether or not anyone listens. Keeps its events here and in the store."""

    def __init__(self, store: ResponseStore, queue: AnswerQueue, writer: ResponseWriter) -> None:
        self._store, self._queue, self._writer = store, queue, writer
        self._events: list[bytes] = []
        self._num_stored = 0
        self._grown = asyncio.Event()
        self._over = asyncio.Event()  # no more updates
        self._ended = False  # no more events
        self._kept = False
        self._failure: QuireError | None = None
        self.error: QuireError | None = None  # error before the first event

    @property
    def identity(self) -> str:
        """The response's id."""
        return self._writer.body.id

    @property
    def body(self) -> ResponseBody:
        """The response so far."""
        return self._writer.body

    def stop(self, error: QuireError | None = None) -> None:
        """Ends the response: as cancelled, or with an error as failed."""
        if error:
            self._queue.fail(error)
        else:
            self._queue.cancel()

    async def keep(self, tenant: str, items: bytes) -> None:
        """Adds the response to the store, and publishes its first events.

        Raises:
            Unavailable: the store cannot be reached.
        """
        body = msgspec.json.encode(self.body)
        await self._store.add(NewResponse(self.identity, tenant, body, items, is_live=True, has_events=True))
        self._kept = True
        self._publish(self._writer.opening())

    async def work(self, tenant: str, items: bytes) -> None:
        """Reads all updates. A failure before the first one is not stored, unless the response already is."""
        beating = asyncio.create_task(self._beat())
        try:
            await self._read(tenant, items)
            self._over.set()
            await beating  # its last write must precede that of the end
            if self._kept:
                await self._finish()
            else:
                self.error = self._failure
        finally:
            beating.cancel()
            self._ended = True
            self._publish(())

    async def read(self, after: int, timeout: float) -> list[bytes] | None:
        """See EventLog."""
        grown = self._grown
        if len(self._events) <= after + 1 and not self._ended:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(grown.wait(), timeout)
        found = self._events[after + 1 : after + 1 + _MOST_EVENTS]
        return found if found or self._ended else None

    async def _read(self, tenant: str, items: bytes) -> None:
        try:
            async for update in updates(self._queue):
                if not self._kept:
                    await self.keep(tenant, items)
                self._publish(self._writer.update(update))
        except QuireError as error:
            self._failure = error
        except Exception:
            logger.exception("the work on %s failed", self.identity)
            self._failure = Internal("Internal error; the gateway's log has the details.")
        self._failure = self._failure or self._queue.error
        self._queue.cancel()

    def _publish(self, events: Iterable[bytes]) -> None:
        self._events += events
        self._grown.set()
        self._grown = asyncio.Event()

    def _unstored(self) -> EventChunk:
        return EventChunk(self._num_stored, self._events[self._num_stored :])

    async def _beat(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), BEAT_SECONDS)
            if self._over.is_set():
                return
            chunk = self._unstored()
            try:
                goes_on = not self._kept or await self._store.beat(self.identity, chunk)
            except QuireError as error:  # readers in this gateway are not affected
                logger.warning("the events of %s cannot be stored at the moment: %s", self.identity, error)
                continue
            if self._kept:
                self._num_stored += len(chunk.events)
            if not goes_on:
                self.stop()

    async def _finish(self) -> None:
        self._publish(self._writer.closing(self._failure))
        for attempt in range(_ATTEMPTS):
            try:
                await self._store.finish(self.identity, msgspec.json.encode(self.body), self._unstored())
                return
            except QuireError as error:
                logger.warning("the end of %s could not be stored, attempt %d: %s", self.identity, attempt + 1, error)
                await asyncio.sleep(BEAT_SECONDS)


class Follower:
    """One reader of a response's events; see UpdateSource."""

    def __init__(self, log: EventLog, after: int = -1, leave: Callable[[], None] = lambda: None) -> None:
        """
        Args:
            after: number of the last event to skip.
            leave: called when the client has disconnected, and when reading ends.
        """
        self._log, self._after, self._leave = log, after, leave
        self._gone = False

    @property
    def error(self) -> QuireError | None:
        """Why there are no events."""
        return self._log.error if isinstance(self._log, Run) else None

    async def next_batch(self, timeout: float) -> list[bytes] | None:
        """Returns the new events; an empty list at the end; None on timeout."""
        deadline = asyncio.get_running_loop().time() + timeout
        while not self._gone:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return None
            found = await self._log.read(self._after, min(left, _LOOK_SECONDS))
            if found is not None:
                self._after += len(found)
                return found
        return []

    @contextlib.asynccontextmanager
    async def read_by(self, receive: Receive) -> AsyncIterator[None]:
        """Context in which a client reads."""
        try:
            async with while_connected(receive, self._go):
                yield
        finally:
            self._leave()

    def _go(self) -> None:
        self._gone = True
        self._leave()


class Replay:
    """Passes on events that are already encoded; see EventWriter."""

    def opening(self) -> Iterable[bytes]:
        """Nothing: the opening is among the events."""
        return ()

    def update(self, update: bytes) -> Iterable[bytes]:
        """The event itself."""
        return (update,)

    def closing(self, error: QuireError | None) -> Iterable[bytes]:
        """Nothing: the closing is among the events."""
        return ()
