"""Signals on their way to a process."""

from __future__ import annotations

import signal
from pathlib import Path


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a process has not taken a signal yet: until it has, another one like it would be the same one."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(fields["ShdPnd"], 16) >> (number - 1) & 1)
