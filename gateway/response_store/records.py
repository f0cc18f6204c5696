"""Access to stored responses for the endpoints: those in progress in this gateway, and those in the store."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from gateway.answers.events import event
from gateway.protocol.response_events import ResponseFailed
from gateway.protocol.responses import ResponseBody, ResponseFailure
from gateway.response_store.base import EventChunk, NewResponse, ResponseStore, Stage, StoredResponse
from gateway.response_store.run import EventLog, Follower, Run
from quire.errors import InvalidRequest, NotFound, QuireError, Unavailable

logger = logging.getLogger(__name__)

Item = dict[str, Any]
_POLL_SECONDS = 0.25
# Time for the gateway that runs a response to notice that it should stop.
_STOP_SECONDS = 10.0
_LOST = "The gateway that was working on this response was lost before it finished; send the request again."
_NOWHERE = (
    "this server does not store responses (--responses-store): send the whole conversation as input, or start the "
    "server with a store"
)
_NOT_HERE = (
    "it may have expired (--responses-store-max-age-seconds, --responses-store-max-count), been deleted, been created "
    "with another key or with store: false"
)


class Responses:
    """The responses of one gateway. A response not known here may have been put in the store by another gateway."""

    def __init__(self, store: ResponseStore | None) -> None:
        self._store = store
        self._runs: dict[str, Run] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def are_kept(self) -> bool:
        """Whether there is a store."""
        return self._store is not None

    @property
    def store(self) -> ResponseStore:
        """The store; use it only if there is one."""
        assert self._store is not None
        return self._store

    def require(self, store: bool | None) -> None:
        """Checks that a background response can be stored.

        Raises:
            InvalidRequest: it would not be stored, so that nobody could retrieve it.
        """
        if store is False or self._store is None:
            why = "store is false" if self._store else "this server stores none (--responses-store)"
            raise InvalidRequest(
                f"background needs a stored response, but {why}: leave it out.", parameter="background"
            )

    async def find(self, identity: str, tenant: str, parameter: str = "response_id") -> StoredResponse:
        """Returns a tenant's response.

        Raises:
            NotFound: there is none.
            Unavailable: the store cannot be reached.
        """
        found = await self._store.get(identity, tenant) if self._store else None
        if found is None:
            why = _NOT_HERE if self._store else _NOWHERE
            raise NotFound(f"There is no response {identity[:64]!r}: {why}.", parameter=parameter)
        return await self._failed(identity, tenant, found) if found.stage is Stage.ABANDONED else found

    async def items(self, identity: str, tenant: str) -> list[Item]:
        """Returns a response's conversation, including its output.

        Raises:
            InvalidRequest: it has not ended yet.
            NotFound, Unavailable: as `find`.
        """
        found = await self.find(identity, tenant, "previous_response_id")
        if found.stage is Stage.LIVE:
            raise InvalidRequest(
                f"The response {identity[:64]!r} has not finished yet: wait until it has, or cancel it.",
                parameter="previous_response_id",
            )
        return [*msgspec.json.decode(found.items), *msgspec.json.decode(found.body)["output"]]

    async def keep(self, body: ResponseBody, tenant: str, items: bytes) -> None:
        """Stores a response that has ended; if that fails, sets `body.store` to False."""
        try:
            await self.store.add(NewResponse(body.id, tenant, msgspec.json.encode(body), items))
        except QuireError as error:
            logger.warning("%s could not be stored: %s", body.id, error)
            body.store = False

    async def start(self, run: Run, tenant: str, items: bytes, *, in_background: bool) -> None:
        """Starts a run as a task; a background run can be found in the store before this returns.

        Raises:
            Unavailable: the store cannot be reached.
        """
        if in_background:
            await run.keep(tenant, items)
        self._runs[run.identity] = run
        task = asyncio.create_task(run.work(tenant, items))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(run, done))

    async def follow(self, identity: str, tenant: str, after: int) -> Follower:
        """Returns a reader of a response's events after a given number.

        Raises:
            InvalidRequest: its events were not stored.
            NotFound, Unavailable: as `find`.
        """
        found = await self.find(identity, tenant)
        if not found.has_events:
            raise InvalidRequest(
                "The events of this response were not stored: create it with stream: true or background: true. "
                "Without stream, it can be retrieved as a whole.", parameter="stream",
            )  # fmt: skip
        log: EventLog = self._runs.get(identity) or _StoredLog(self, self.store, identity, tenant)
        return Follower(log, after)

    async def cancel(self, identity: str, tenant: str) -> bytes:
        """Cancels a response unless it has ended, and returns its resulting body.

        Raises:
            NotFound, Unavailable: as `find`.
        """
        found = await self.find(identity, tenant)
        if found.stage is not Stage.LIVE:
            return found.body
        if run := self._runs.get(identity):
            run.stop()
        else:
            await self.store.ask_to_stop(identity)
        deadline = time.monotonic() + _STOP_SECONDS
        while found.stage is Stage.LIVE and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_SECONDS / 5 if run else _POLL_SECONDS)
            found = await self.find(identity, tenant)
        return found.body

    async def delete(self, identity: str, tenant: str) -> None:
        """Deletes a response, and stops it if it is in progress.

        Raises:
            NotFound, Unavailable: as `find`.
        """
        await self.find(identity, tenant)
        await self.store.delete(identity, tenant)
        if run := self._runs.get(identity):
            run.stop()

    def cut(self, error: QuireError) -> None:
        """Ends all runs with an error."""
        for run in self._runs.values():
            run.stop(error)

    async def close(self, seconds: float, error: QuireError) -> None:
        """Waits up to `seconds` for runs to end, ends the rest with the error, and closes the store."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        self.cut(error)
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._store:
            await self._store.close()

    def _ended(self, run: Run, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        del self._runs[run.identity]
        if error := task.exception():
            logger.error("the work on %s ended with an error", run.identity, exc_info=error)

    async def _failed(self, identity: str, tenant: str, found: StoredResponse) -> StoredResponse:
        """Marks a response whose gateway was lost as failed in the store, and returns it."""
        body = msgspec.json.decode(found.body, type=ResponseBody)
        body.status, body.error = "failed", ResponseFailure("server_error", _LOST)
        number = 0
        while told := await self.store.events(identity, number - 1):
            number += len(told)
        last = ResponseFailed(response=body, sequence_number=number)
        chunk = EventChunk(number, [event(last, "response.failed")])
        await self.store.finish(identity, msgspec.json.encode(body), chunk)
        ended = await self.store.get(identity, tenant)
        if ended is None or ended.stage is Stage.ABANDONED:
            raise Unavailable("The response is being changed by another gateway; try again in a moment.")
        return ended


class _StoredLog:
    """Events of a response that another gateway runs, or that has ended; see EventLog."""

    def __init__(self, responses: Responses, store: ResponseStore, identity: str, tenant: str) -> None:
        self._responses, self._store, self._identity, self._tenant = responses, store, identity, tenant

    async def read(self, after: int, timeout: float) -> list[bytes] | None:
        """See EventLog. The events also end if the response is deleted."""
        deadline = time.monotonic() + timeout
        while True:
            try:
                stage = (await self._responses.find(self._identity, self._tenant)).stage
            except NotFound:
                return []
            found: Sequence[bytes] = await self._store.events(self._identity, after)
            if found or stage is not Stage.LIVE:
                return list(found)
            if time.monotonic() >= deadline:
                return None
            await asyncio.sleep(_POLL_SECONDS)
