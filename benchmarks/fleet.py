"""A fleet of processes: engine workers that can be killed, frozen and started again, and routers in front of them."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from quire.serve.ports import free_ports

START_SECONDS = 120.0
_STOP_SECONDS = 30.0
_LOGS = Path(".cache/logs")


class Service:
    """One `quire` process that listens on a port of its own, again and again the same."""

    def __init__(self, name: str, command: str, arguments: Sequence[str], port: int) -> None:
        self.name = name
        self.address = f"127.0.0.1:{port}"
        self._port = port
        self._command = [sys.executable, "-m", "quire", command, *arguments, "--port", str(port)]
        self.process = self._start()

    def restart(self) -> None:
        """Starts it anew, once it has ended."""
        self.process.wait(_STOP_SECONDS)
        self.process = self._start()

    def signal(self, number: signal.Signals) -> None:
        """Sends it a signal."""
        self.process.send_signal(number)

    def stop(self) -> None:
        """Ends it, at once if it does not end by itself."""
        for number in (signal.SIGCONT, signal.SIGINT, signal.SIGINT):  # the second Ctrl-C waits for nobody
            if self.process.poll() is None:
                self.signal(number)
                time.sleep(0.1)
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def wait_listening(self) -> None:
        """Returns once it takes connections.

        Raises:
            RuntimeError: it ends before, or takes too long.
        """
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{self.name} did not start; see {_LOGS / self.name}.log") from None
                time.sleep(0.05)

    def _start(self) -> subprocess.Popen[bytes]:
        _LOGS.mkdir(parents=True, exist_ok=True)
        with (_LOGS / f"{self.name}.log").open("ab") as log:
            return subprocess.Popen(self._command, stdout=log, stderr=log)


@contextmanager
def engines(model: Path, count: int, arguments: Sequence[str]) -> Iterator[list[Service]]:
    """Engine workers of one thread each; they may still be loading."""
    options = [str(model), "--served-model-name", "bench", "--cpu-threads", "1", "--log-level", "warning", *arguments]
    started = [Service(f"engine-{index}", "engine", options, port) for index, port in enumerate(free_ports(count))]
    with _stopped(started):
        yield started


@contextmanager
def router(workers: Sequence[Service], arguments: Sequence[str]) -> Iterator[Service]:
    """A router in front of the workers."""
    options = [option for worker in workers for option in ("--workers", worker.address)]
    service = Service("router", "router", [*options, "--log-level", "warning", *arguments], free_ports(1)[0])
    with _stopped([service]):
        service.wait_listening()
        yield service


@contextmanager
def _stopped(services: Sequence[Service]) -> Iterator[None]:
    try:
        yield
    finally:
        for service in services:
            service.stop()
