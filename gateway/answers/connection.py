"""Detects when the client of a request disconnects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from starlette.types import Receive


@contextlib.asynccontextmanager
async def while_connected(receive: Receive, when_gone: Callable[[], None]) -> AsyncIterator[None]:
    """Calls `when_gone` if the client disconnects while the context is open."""
    watcher = asyncio.ensure_future(_watch(receive, when_gone))
    try:
        yield
    finally:
        watcher.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watcher


async def _watch(receive: Receive, when_gone: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
    when_gone()
