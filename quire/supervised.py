"""A process's link to the `quire serve` that started it: it reports its progress, and ends when its parent does.

In a process that was started by hand, all of this does nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import secrets
import signal
import socket
import struct
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

_SOCKET = "QUIRE_SUPERVISOR_SOCKET"
_PROCESS = "QUIRE_SUPERVISOR_PROCESS"
_NAME = "QUIRE_SUPERVISED_NAME"
_SEND_SECONDS = 1.0
_MAX_REPORT_BYTES = 2**16
CREDENTIALS = struct.Struct("iii")  # a peer's process, user and group ids
_PR_SET_PDEATHSIG = 1


class Stage(StrEnum):
    """How far a process's startup has come."""

    STARTING = "starting"
    DOWNLOADING = "downloading"
    COMPILING = "compiling kernels"
    LOADING = "loading weights"  # the options are consistent and the configuration is sound; the rest just takes time
    WARMING_UP = "warming up"
    WAITING = "waiting"  # for other services; the message says which
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True)
class Report:
    """A process's report on itself."""

    name: str
    stage: Stage
    fraction: float | None = None  # share of the stage that is done, from 0 to 1
    message: str = ""  # text for the user with FAILED and WAITING

    @staticmethod
    def decode(data: bytes) -> Report:
        """Parses the report in a datagram."""
        fields = json.loads(data)
        return Report(**fields | {"stage": Stage(fields["stage"])})


class Reports:
    """The supervisor's socket for its processes' reports: an abstract one, which leaves no file behind.

    Attributes:
        path: its address, as passed to the processes.
    """

    def __init__(self) -> None:
        self.path = f"@quire-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(_address(self.path))

    def fileno(self) -> int:
        """The file descriptor, for polling; -1 once closed."""
        return self._socket.fileno()

    def receive(self) -> Report | None:
        """The next report; None if it comes from another user's process, which can see the socket's name.

        Raises:
            BlockingIOError: no report is waiting.
        """
        data, ancillary, _, _ = self._socket.recvmsg(_MAX_REPORT_BYTES, socket.CMSG_SPACE(CREDENTIALS.size))
        users = [
            CREDENTIALS.unpack(found)[1] for _, kind, found in ancillary if kind == socket.SCM_CREDENTIALS
        ]  # fmt: skip
        return Report.decode(data) if users == [os.getuid()] else None

    def close(self) -> None:
        """Closes the socket. May be called twice."""
        self._socket.close()


def _address(path: str) -> str:
    """Translates a path to a socket address; one that begins with @ is an abstract name without a file."""
    return "\0" + path[1:] if path.startswith("@") else path


def supervised_environment(name: str, socket_path: str) -> Mapping[str, str]:
    """Environment variables for this process's child called `name`. For the socket's path see Reports.path."""
    return {_SOCKET: socket_path, _PROCESS: str(os.getpid()), _NAME: name}


def control_path(environment: Mapping[str, str]) -> str:
    """Address of the socket on which the supervisor accepts commands; empty without a supervisor."""
    reports = environment.get(_SOCKET, "")
    return _address(f"{reports}.control") if reports else ""


def supervised_name() -> str:
    """The name that the supervisor gave this process, such as engine-1; empty without one."""
    return os.environ.get(_NAME, "")


def report(stage: Stage, fraction: float | None = None, message: str = "") -> bool:
    """Reports to the supervisor; returns whether one received it."""
    if not (path := os.environ.get(_SOCKET)):
        return False
    told = json.dumps(asdict(Report(supervised_name(), stage, fraction, message))).encode()
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(_SEND_SECONDS)
        sender.sendto(told, _address(path))
        return True
    return False


def end_with_supervisor() -> None:
    """Has the kernel kill this process as soon as its supervisor is gone, however it ended (on Linux)."""
    if parent := os.environ.get(_PROCESS):
        end_with_parent(int(parent))


def end_with_parent(parent: int) -> None:
    """Like `end_with_supervisor`, for the parent process with this id.

    What counts is the end of the parent's thread that started this process.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent was gone before
            sys.exit(1)
