"""The answers of requests that follow one another, as those of one request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator

import msgspec
from starlette.types import Receive

from gateway.answers.collecting import CollectedChoice, updates
from gateway.answers.connection import while_connected
from gateway.answers.deltas import ChoiceUpdate, FinishReason
from gateway.requests.state import RequestState
from quire.errors import Cancelled, Internal, QuireError

logger = logging.getLogger(__name__)

MOST_LIVE = 4  # requests that run, or whose answers have not been read


class AnswerChain:
    """An UpdateSource of the answers of several requests, in their order; each request has one choice.

    The index of an update tells the request that it belongs to. Requests start while earlier ones are read, but only a
    few ahead of the reader. The first one that fails or is aborted ends them all.

    Attributes:
        request_id, answering_model: of the first request.
        prompt_tokens: of all requests that have started.
        error: see UpdateSource.
        has_ended: whether nothing is missing: the requests have all ended, or were aborted.
    """

    def __init__(self, first: RequestState, rest: AsyncGenerator[RequestState, None]) -> None:
        """
        Args:
            first: the first request, which has started.
            rest: starts the others, one after the other; closed once they all have, or never will.
        """
        self.request_id, self.answering_model = first.request.request_id, first.request.answering_model
        self.prompt_tokens = first.prompt_tokens
        self.error: QuireError | None = None
        self.has_ended = False
        self._rest = rest
        self._current: RequestState | None = first
        self._index = 0
        self._cached_tokens = 0  # of the requests before the current one
        self._live: set[RequestState] = {first}
        self._room = asyncio.Semaphore(MOST_LIVE - 2)  # the first one runs, and the next one may start
        # The requests that have started; then None, or why there are no more.
        self._started: asyncio.Queue[RequestState | QuireError | None] = asyncio.Queue()
        self._is_closed = False

    @property
    def cached_tokens(self) -> int:
        """Number of prompt tokens found in the prefix cache, as far as they have been read."""
        return self._cached_tokens + (self._current.cached_tokens if self._current else 0)

    async def next_batch(self, timeout: float) -> list[ChoiceUpdate] | None:
        """See UpdateSource. The updates of a batch belong to the same request."""
        while not self._is_closed:
            if self._current is None:
                try:
                    self._go_on(await asyncio.wait_for(self._started.get(), timeout))
                except TimeoutError:
                    return None
                continue
            batch = await self._current.next_batch(timeout)
            if batch is None:
                return None
            if batch:
                return self._told(batch)
            self._leave(self._current)
        return []

    @contextlib.asynccontextmanager
    async def read_by(self, receive: Receive) -> AsyncIterator[None]:
        """See UpdateSource. Ends all requests when the client disconnects, or at the latest when the context closes."""
        starting = asyncio.create_task(self._start_rest())
        try:
            async with while_connected(receive, self._close):
                yield
        finally:
            self._close()
            starting.cancel()
            await asyncio.wait((starting,))
            await self._rest.aclose()

    def _told(self, batch: list[ChoiceUpdate]) -> list[ChoiceUpdate]:
        """Returns the updates with the index of their request."""
        finish = batch[-1].finish
        if finish and finish.reason is FinishReason.ABORT:
            self.has_ended = True
            self._close()
        return [msgspec.structs.replace(update, index=self._index) for update in batch] if self._index else batch

    def _leave(self, state: RequestState) -> None:
        """All of the current request has been read."""
        self._cached_tokens += state.cached_tokens
        self._current = None
        self._live.discard(state)
        self._room.release()
        if state.error:
            self._fail(state.error)

    def _go_on(self, following: RequestState | QuireError | None) -> None:
        if isinstance(following, RequestState):
            self._current = following
            self._index += 1
        elif following:
            self._fail(following)
        elif not self._is_closed:
            self.has_ended = True
            self._close()

    def _fail(self, error: QuireError) -> None:
        if not self._is_closed:
            self.error = error
            self._close()

    def _close(self) -> None:
        """Ends all requests."""
        self._is_closed = True
        self._started.put_nowait(None)  # wakes the reader
        for state in self._live:
            state.cancel()

    async def _start_rest(self) -> None:
        """Starts the requests after the first."""
        outcome: QuireError | None = None
        try:
            while await self._start_next():
                await self._room.acquire()
        except QuireError as error:
            outcome = error
        except Exception:
            logger.exception("a request for a piece of a recording could not be made")
            outcome = Internal("An internal error occurred; the log has the details.")
        self._started.put_nowait(outcome)

    async def _start_next(self) -> bool:
        """Starts the next request, and returns whether there is one."""
        state = None if self._is_closed else await anext(self._rest, None)
        if state is None:
            await self._rest.aclose()
            return False
        self._live.add(state)
        self.prompt_tokens += state.prompt_tokens
        self._started.put_nowait(state)
        if self._is_closed:
            state.cancel()
        return True


async def collect_chain(chain: AnswerChain, receive: Receive) -> list[CollectedChoice]:
    """Collects the answers of all requests; a client that disconnects ends them.

    Raises:
        QuireError: a request failed.
        Cancelled: the client has disconnected.
    """
    collected: list[CollectedChoice] = []
    async with chain.read_by(receive):
        async for update in updates(chain):
            if update.index == len(collected):
                collected.append(CollectedChoice())
            collected[update.index].add(update)
    if chain.error:
        raise chain.error
    if not chain.has_ended:
        raise Cancelled("The client has disconnected.")
    return collected
