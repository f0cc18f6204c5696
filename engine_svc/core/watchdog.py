"""Health status based on the engine's progress; gRPC pings only prove that gRPC's threads run."""

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
# The supervisor restarts a worker that exits with this code.
EXIT_ENGINE_DIED = 70


async def watch_steps(
    step_age: Callable[[], float],
    options: WatchdogOptions,
    set_serving: Callable[[bool], Awaitable[None]],
    give_up: Callable[[float], None],
) -> None:
    """Reports NOT_SERVING while a step exceeds its time limit and SERVING again when it has ended, until canceled.

    Args:
        step_age: returns the seconds that the current step has been running; 0 between steps.
        give_up: called with the step's age if it has not ended within the grace period. That starts when the delay is
            noticed: a process that was frozen for an hour is not late by an hour.
    """
    late_since: float | None = None
    while True:
        await asyncio.sleep(_CHECK_SECONDS)
        age = step_age()
        if (late_since is not None) != (age > options.step_timeout_seconds):
            late_since = time.monotonic() if late_since is None else None
            if late_since is None:
                logger.warning("steps continue")
            else:
                logger.error("a step is taking longer than %g s", options.step_timeout_seconds)
            await set_serving(late_since is None)
        elif late_since is not None and time.monotonic() - late_since >= options.step_grace_seconds:
            give_up(age)


def end_process(step_age: float) -> None:
    """Ends this process at once: a thread that hangs in a step cannot be ended, and would block an orderly exit."""
    faulthandler.dump_traceback()
    logger.critical(
        "the engine has been in one step for %.0f s, which is too long; the process exits with code %d, to be "
        "restarted (--step-timeout-seconds, --step-grace-seconds)",
        step_age,
        EXIT_ENGINE_DIED,
    )
    logging.shutdown()
    os._exit(EXIT_ENGINE_DIED)
