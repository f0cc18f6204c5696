"""Lowers the CPU priority of processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

_LOWEST = 19
# Linux allows users other than root one autogroup change per tenth of a second.
_REPEAT_SECONDS = 0.1
_TRIES = 50


async def lower_priority(process: asyncio.subprocess.Process, niceness: int) -> None:
    """Gives a process that was just started in a session of its own, and its children, a lower CPU priority.

    Where Linux groups processes by session, as on most desktops, niceness counts only within a group, and the group has
    a niceness of its own.
    """
    if niceness <= 0:
        return
    with contextlib.suppress(OSError):  # it has ended, or this is not permitted
        own = min(_LOWEST, os.getpriority(os.PRIO_PROCESS, process.pid) + niceness)
        os.setpriority(os.PRIO_PROCESS, process.pid, own)
        group = Path(f"/proc/{process.pid}/autogroup")
        await repeat_when_busy(lambda: process.returncode is None and group.write_text(str(own)))


async def repeat_when_busy(call: Callable[[], object]) -> None:
    """Calls until the kernel no longer answers EAGAIN.

    Raises:
        OSError: the call fails otherwise, or keeps failing.
    """
    for remaining in reversed(range(_TRIES)):
        try:
            call()
        except BlockingIOError:
            if not remaining:
                raise
            await asyncio.sleep(_REPEAT_SECONDS)
        else:
            return
