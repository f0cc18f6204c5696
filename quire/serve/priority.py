"""How much of a busy core a process gets beside others."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

_LOWEST = 19
# Linux changes one group in a tenth of a second for those who are not root.
_REPEAT_SECONDS = 0.1
_TRIES = 50


async def lower_priority(process: asyncio.subprocess.Process, niceness: int) -> None:
    """Has others run before a process that has just been started in a session of its own, and before all it starts.

    Where Linux groups processes by session, as on most desktops, niceness counts within a group only, and the group has
    one of its own.
    """
    if niceness <= 0:
        return
    with contextlib.suppress(OSError):  # it has ended, or the system does not let us
        own = min(_LOWEST, os.getpriority(os.PRIO_PROCESS, process.pid) + niceness)
        os.setpriority(os.PRIO_PROCESS, process.pid, own)
        group = Path(f"/proc/{process.pid}/autogroup")
        await repeat_when_busy(lambda: process.returncode is None and group.write_text(str(own)))


async def repeat_when_busy(call: Callable[[], object]) -> None:
    """
    Raises:
        OSError: it fails in another way, or still.
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
