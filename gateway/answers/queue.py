"""Updates on their way from the services to a request's client."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Sequence

import msgspec
from starlette.types import Receive

from gateway.answers.connection import while_connected
from gateway.answers.context import NO_CONTEXT, AnswerContext
from gateway.answers.deltas import ChoiceUpdate
from gateway.answers.parser import AnswerParser, ParserChain
from gateway.answers.patience import Patience
from quire.errors import Overloaded, QuireError

# Maximum number of updates waiting for a client that does not read: far more than a healthy one ever has. A request
# gets one per step for each of its choices.
MAX_WAITING_UPDATES = 16384
MAX_WAITING_STEPS = 64


class AnswerQueue:
    """A request's updates: the services push them, the client's task reads them."""

    def __init__(
        self, choices: int, parsers: Sequence[type[AnswerParser]] = (), context: AnswerContext = NO_CONTEXT
    ) -> None:
        """
        Args:
            choices: number of choices.
            parsers: parsers of each choice's text; empty if all of it is content.
            context: what the parsers know of the request.
        """
        # Why the request failed as a whole; only updates already waiting are still delivered.
        self.error: QuireError | None = None
        self._chains = [ParserChain(parser(context) for parser in parsers) for _ in range(choices)] if parsers else []
        self._most = max(MAX_WAITING_UPDATES, MAX_WAITING_STEPS * choices)
        self._updates: deque[ChoiceUpdate] = deque()
        self._reader: asyncio.Future[None] | None = None
        self._patience = Patience(self._wake)
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the request has ended, in whatever way."""
        return self._closed

    def push(self, update: ChoiceUpdate) -> None:
        """Queues an update for the client's task."""
        if len(self._updates) >= self._most:
            self.fail(Overloaded("The client is not reading its stream, so the stream was closed."))
            return
        self._updates.append(update)
        self._wake()

    def fail(self, error: QuireError) -> None:
        """Ends the request with an error."""
        if not self._closed:
            self.error = error
            self.close()

    def cancel(self) -> None:
        """Ends the request without delivering more updates, because the client has disconnected."""
        self._updates.clear()
        self.close()

    def close(self) -> None:
        """Ends the request; waiting updates are still delivered. May be called twice."""
        if not self._closed:
            self._closed = True
            self.release()
            self._patience.close()
            self._wake()

    def release(self) -> None:
        """Frees the resources that the request holds elsewhere; called once."""

    async def next_batch(self, timeout: float) -> list[ChoiceUpdate] | None:
        """Returns all updates that are ready, at least one; an empty list at the end; None on timeout.

        Always yields to other tasks.
        """
        if self._updates or self._closed:
            await asyncio.sleep(0)
        else:
            self._reader = asyncio.get_running_loop().create_future()
            self._patience.begin(timeout)
            await self._reader
            self._patience.end()
            if not self._updates and not self._closed:
                return None
        batch = list(self._updates)
        self._updates.clear()
        return [self._parsed(update) for update in batch] if self._chains else batch

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _parsed(self, update: ChoiceUpdate) -> ChoiceUpdate:
        deltas = tuple(self._chains[update.index].feed(update.deltas))
        return msgspec.structs.replace(update, deltas=deltas)

    @contextlib.asynccontextmanager
    async def read_by(self, receive: Receive) -> AsyncIterator[None]:
        """Ends the request when the client disconnects, or at the latest when the context closes."""
        try:
            async with while_connected(receive, self.cancel):
                yield
        finally:
            self.cancel()
