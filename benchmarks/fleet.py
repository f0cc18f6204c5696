"""A fleet of processes: engine workers that can be killed, frozen and restarted, and routers in front of them."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.servers import answers
from benchmarks.stopping import unwinding
from quire.serve.ports import free_ports

MODEL_NAME = "bench"
START_SECONDS = 120.0
_STOP_SECONDS = 30.0
_LOGS = Path(".cache/logs")
_QUIRE = (sys.executable, "-m", "quire")
_QUIET = ("--log-level", "warning")


class Service:
    """A process that listens on its own port, which stays the same across restarts."""

    def __init__(self, name: str, command: Sequence[str], port: int) -> None:
        self.name = name
        self.address = f"127.0.0.1:{port}"
        self.port = port
        self._command = [*command, "--port", str(port)]
        self.process = self._start()

    def restart(self) -> None:
        """Restarts the process, once it has ended."""
        self.process.wait(_STOP_SECONDS)
        self.process = self._start()

    def signal(self, number: signal.Signals) -> None:
        """Sends the process a signal."""
        self.process.send_signal(number)

    def stop(self) -> None:
        """Ends the process, by SIGKILL if necessary."""
        for number in (signal.SIGCONT, signal.SIGINT, signal.SIGINT):  # the second SIGINT does not wait for requests
            if self.process.poll() is None:
                self.signal(number)
                time.sleep(0.1)
        try:
            self.process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def wait_listening(self) -> None:
        """Waits until the process accepts connections.

        Raises:
            RuntimeError: it ends before that, or takes too long.
        """
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
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
    """Engine workers with one thread each; they may still be loading."""
    options = ["engine", str(model), "--served-model-name", MODEL_NAME, "--cpu-threads", "1", *_QUIET, *arguments]
    started = [Service(f"engine-{index}", [*_QUIRE, *options], port) for index, port in enumerate(free_ports(count))]
    with _stopped(started):
        yield started


@contextmanager
def router(workers: Sequence[Service], arguments: Sequence[str]) -> Iterator[Service]:
    """A router in front of the workers."""
    options = [option for worker in workers for option in ("--workers", worker.address)]
    with service("router", [*_QUIRE, "router", *options, *_QUIET, *arguments]) as started:
        yield started


@contextmanager
def tokenizer(model: Path) -> Iterator[Service]:
    """A tokenizer service."""
    with service("tokenizer", [*_QUIRE, "tokenizer", str(model), *_QUIET]) as started:
        yield started


@contextmanager
def gateway(routers: Sequence[Service], tokenizers: Sequence[Service]) -> Iterator[Service]:
    """An HTTP server in front of routers and tokenizers; it answers once the context is entered."""
    addresses = [option for each in routers for option in ("--router-address", each.address)]
    addresses += [option for each in tokenizers for option in ("--tokenizer-address", each.address)]
    options = ["--enable-prompt-tokens-details", "--uvicorn-log-level", "warning"]
    with service("gateway", [*_QUIRE, "gateway", *addresses, *options, *_QUIET]) as started:
        wait_answering(started)
        yield started


@contextmanager
def service(name: str, command: Sequence[str]) -> Iterator[Service]:
    """Any process that takes --port; it listens once the context is entered."""
    started = Service(name, command, free_ports(1)[0])
    with _stopped([started]):
        started.wait_listening()
        yield started


def wait_answering(server: Service) -> None:
    """Waits until an HTTP server completes a prompt.

    Raises:
        RuntimeError: it takes too long.
    """
    deadline = time.monotonic() + START_SECONDS
    while not answers(server.port):
        if time.monotonic() > deadline:
            raise RuntimeError(f"{server.name} does not answer; see {_LOGS / server.name}.log")
        time.sleep(0.05)


@contextmanager
def _stopped(services: Sequence[Service]) -> Iterator[None]:
    with unwinding():
        try:
            yield
        finally:
            for service in services:
                service.stop()
