"""The only delta of a one-shot request."""

from __future__ import annotations

import asyncio

from engine_svc.requests.outputs import FinishReason, SequenceDelta
from quire.errors import Cancelled


class OnlyDelta:
    """Receives the only delta of a request for pooling or for encoding."""

    def __init__(self) -> None:
        self._delta: asyncio.Future[SequenceDelta] = asyncio.get_running_loop().create_future()

    def deliver(self, deltas: list[SequenceDelta]) -> None:
        """Called by the engine's loop."""
        if not self._delta.done():
            self._delta.set_result(deltas[-1])

    async def result(self) -> SequenceDelta:
        """Waits for the delta. The request's own deadline bounds the wait.

        Raises:
            QuireError: the request has failed; Cancelled if it was aborted.
        """
        delta = await self._delta
        if delta.error is not None:
            raise delta.error
        if delta.finish_reason is not FinishReason.STOP:
            raise Cancelled("The request was aborted.")
        return delta
