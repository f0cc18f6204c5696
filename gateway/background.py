"""What runs beside the requests of a gateway, which is of no use without it."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


def begin(job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Runs until it is cancelled. If it fails the process drains and ends, for its supervisor to start it anew."""
    task = asyncio.create_task(job)
    task.add_done_callback(_check)
    return task


def _check(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        logger.critical("a background task failed; shutting down", exc_info=error)
        signal.raise_signal(signal.SIGTERM)
