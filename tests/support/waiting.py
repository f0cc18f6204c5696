"""Waiting for something to become true, with an end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

WAIT_SECONDS = 20.0


async def eventually(condition: Callable[[], object], what: str = "", seconds: float = WAIT_SECONDS) -> None:
    """Returns once `condition()` is true; fails the test when it is not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s in vain: {what}"
        await asyncio.sleep(0.01)
