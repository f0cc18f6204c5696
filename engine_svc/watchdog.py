"""Health that follows the engine's progress: pings prove only that gRPC's threads run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 0.25


async def watch_steps(
    step_age: Callable[[], float], timeout_seconds: float, set_serving: Callable[[bool], Awaitable[None]]
) -> None:
    """Until cancelled: NOT_SERVING while a step takes longer than it may, SERVING again when it has ended.

    Args:
        step_age: seconds that the current step runs; 0 between steps.
    """
    wedged = False
    while True:
        await asyncio.sleep(_CHECK_SECONDS)
        late = step_age() > timeout_seconds
        if late != wedged:
            wedged = late
            logger.error("a step takes longer than %g s", timeout_seconds) if late else logger.warning("steps go on")
            await set_serving(not late)
