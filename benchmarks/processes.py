"""The processes of a running stack: starts it, and measures the CPU time of each service."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.stopping import unwinding

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_STOP_SECONDS = 30


@contextmanager
def running_stack(model: str, arguments: Sequence[str]) -> Iterator[dict[str, list[int]]]:
    """Starts `quire serve` and yields service → process ids once it is ready; stops it at the end."""
    command = [sys.executable, "-m", "quire", "serve", model, "--log-level", "warning"]
    command += ["--uvicorn-log-level", "warning", *arguments]
    with unwinding():
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            stdout = process.stdout
            if stdout is None or not any("  try " in line for line in stdout):
                raise RuntimeError("the stack did not start; see above")
            yield services(process.pid)
        finally:
            process.terminate()
            process.wait(_STOP_SECONDS)


def services(parent: int) -> dict[str, list[int]]:
    """The services of a `quire serve`, by name, and their process ids."""
    found: dict[str, list[int]] = {}
    for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        with suppress(OSError, ValueError):  # the process has just ended, or is being started
            command = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
            found.setdefault(command[command.index(b"quire") + 1].decode(), []).append(int(child))
    return found


def cpu_seconds(pids: Sequence[int]) -> float:
    """User and system time of the processes so far."""
    total = 0
    for pid in pids:
        fields = re.sub(r".*\) ", "", Path(f"/proc/{pid}/stat").read_text()).split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS_PER_SECOND
