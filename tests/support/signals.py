"""Signals on their way to a process."""

from __future__ import annotations

import signal
from pathlib import Path


def is_pending(pid: int, number: signal.Signals) -> bool:
    """Whether a signal is still pending; until the process takes it, sending it again would have no effect."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(fields["ShdPnd"], 16) >> (number - 1) & 1)
