"""Health that follows the engine's progress: pings prove only that gRPC's threads run."""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import time
from collections.abc import Awaitable, Callable

from quire.options.watchdog import WatchdogOptions

logger = logging.getLogger(__name__)

_CHECK_SECONDS = 0.25
# The supervisor restarts a worker that ends so.
EXIT_ENGINE_DIED = 70


async def watch_steps(
    step_age: Callable[[], float],
    options: WatchdogOptions,
    set_serving: Callable[[bool], Awaitable[None]],
    give_up: Callable[[float], None],
) -> None:
    """Until cancelled: NOT_SERVING while a step takes longer than it may, SERVING again when it has ended.

    Args:
        step_age: seconds that the current step runs; 0 between steps.
        give_up: called with that when the step has not ended by the end of the grace. It is counted from when lateness
            was noticed: a process that was frozen for an hour is not late by an hour.
    """
    late_since: float | None = None
    while True:
        await asyncio.sleep(_CHECK_SECONDS)
        age = step_age()
        if (late_since is not None) != (age > options.step_timeout_seconds):
            late_since = time.monotonic() if late_since is None else None
            if late_since is None:
                logger.warning("steps go on")
            else:
                logger.error("a step takes longer than %g s", options.step_timeout_seconds)
            await set_serving(late_since is None)
        elif late_since is not None and time.monotonic() - late_since >= options.step_grace_seconds:
            give_up(age)


def end_process(step_age: float) -> None:
    """Ends this process at once: a thread that hangs in a step cannot be ended, and would hold up an orderly exit."""
    faulthandler.dump_traceback()
    logger.critical(
        "the engine has been in one step for %.0f s and is given up; the process ends with code %d, to be started anew "
        "(--step-timeout-seconds, --step-grace-seconds)",
        step_age,
        EXIT_ENGINE_DIED,
    )
    logging.shutdown()
    os._exit(EXIT_ENGINE_DIED)
