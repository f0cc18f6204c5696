"""A fake engine as a process of its own, to be killed, frozen and drained."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.waiting import WAIT_SECONDS

ROOT = Path(__file__).parents[2]


_WORKERS = 16  # most pytest workers that run in parallel
_given: set[int] = set()


def free_port() -> int:
    """A port that stays free until it is listened on.

    It is outside the range of ports for outgoing connections, and no two tests get the same port.
    """
    below = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    while True:
        port = random.SystemRandom().randrange(10_000 + worker % _WORKERS, below, _WORKERS)
        if port in _given:
            continue
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            _given.add(port)
            return port


class EngineProcess:
    """Started at once; can be started again on the same port."""

    def __init__(self, port: int, *arguments: str) -> None:
        self.address = f"127.0.0.1:{port}"
        code = "from tests.support.fake_engine import run; run()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", code, "--port", str(port), *arguments], cwd=ROOT, stderr=subprocess.DEVNULL
        )

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(WAIT_SECONDS)

    def wait_exit(self) -> int:
        return self._process.wait(WAIT_SECONDS)


@contextlib.contextmanager
def engine_process(port: int, *arguments: str) -> Iterator[EngineProcess]:
    process = EngineProcess(port, *arguments)
    try:
        yield process
    finally:
        process.kill()
