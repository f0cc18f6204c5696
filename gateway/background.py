"""Background tasks that the gateway cannot work without."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import Any

logger = logging.getLogger(__name__)


def begin(job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Runs a job until cancelled. If it fails, the process drains and exits, so that its supervisor restarts it."""
    task = asyncio.create_task(job)
    task.add_done_callback(_check)
    return task


def _check(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        logger.critical("a background task failed; shutting down", exc_info=error)
        signal.raise_signal(signal.SIGTERM)
