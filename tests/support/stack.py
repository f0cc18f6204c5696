"""A running `quire serve` for the end-to-end tests: starts it, queries it, stops it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.support.engine_process import free_port

ROOT = Path(__file__).parents[2]
READY_SECONDS = 90
STOP_SECONDS = 60


@dataclass
class Stack:
    """A running `quire serve`."""

    process: subprocess.Popen[str]
    port: int
    model: Path | None  # None means the bundled one
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def children(self) -> dict[str, int]:
        """Name of the sub-command (engine, router, ...) → process id; the last engine stands for all."""
        return {command: pid for pid, command in self.processes()}

    def processes(self) -> list[tuple[int, str]]:
        """Process ids of its children, and their sub-commands."""
        found = []
        for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                if b"quire" in words:  # not one that is just being started or has just died
                    found.append((int(pid), words[words.index(b"quire") + 1].decode()))
        return found

    def wait_ready(self) -> None:
        """Waits until the stack has printed its summary."""
        self._wait(lambda: True)

    def wait_healthy(self) -> None:
        """Waits until the stack serves and has printed its summary."""
        self._wait(self._is_healthy)

    def _wait(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            assert self.process.poll() is None, self.log.read_text()
            if " is ready after " in self.log.read_text() and condition():
                return
            time.sleep(0.1)
        raise AssertionError(f"not healthy after {READY_SECONDS} s:\n{self.log.read_text()}")

    def _is_healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as response:
                return bool(response.status == 200)
        except OSError:
            return False


def quire(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "quire", *arguments]


def start_stack(model: Path | None, log: Path, *arguments: str) -> Stack:
    """Starts `quire serve` with its output in `log`; the caller waits and stops it."""
    port = free_port()
    with log.open("w") as output:
        process = subprocess.Popen(
            quire("serve", *([] if model is None else [str(model)]), "--port", str(port), *arguments),
            cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
    return Stack(process, port, model, log)


def stop_stack(stack: Stack, number: signal.Signals = signal.SIGINT) -> int:
    """Ctrl-C, or another signal; returns the exit code."""
    if stack.process.poll() is None:
        stack.process.send_signal(number)
    return stack.process.wait(STOP_SECONDS)
