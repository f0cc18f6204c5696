"""The ties of a process to the `quire serve` that started it: it says how far it is, and ends when its parent does.

In a process that was started by hand all of this does nothing.
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
CREDENTIALS = struct.Struct("iii")  # of a peer: process, user, group
_PR_SET_PDEATHSIG = 1


class Stage(StrEnum):
    """How far a process is."""

    STARTING = "starting"
    DOWNLOADING = "downloading"
    COMPILING = "compiling kernels"
    LOADING = "loading weights"  # the options go together and the configuration is sound: what is left takes time
    WARMING_UP = "warming up"
    WAITING = "waiting"  # for other services; the message says for what
    READY = "ready"
    FAILED = "failed"


@dataclass(frozen=True)
class Report:
    """What a process says of itself."""

    name: str
    stage: Stage
    fraction: float | None = None  # of the stage that is done, from 0 to 1
    message: str = ""  # what FAILED and WAITING are to tell the user

    @staticmethod
    def decode(data: bytes) -> Report:
        """The report in a datagram."""
        fields = json.loads(data)
        return Report(**fields | {"stage": Stage(fields["stage"])})


class Reports:
    """Where a supervisor hears of its processes: a socket with a name and no file, of which nothing is ever left.

    Attributes:
        path: what the processes are told of it.
    """

    def __init__(self) -> None:
        self.path = f"@quire-{secrets.token_hex(16)}"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._socket.bind(_address(self.path))

    def fileno(self) -> int:
        """For those who wait; -1 once closed."""
        return self._socket.fileno()

    def receive(self) -> Report | None:
        """The next report; None where it comes from another user's process, who can see the name.

        Raises:
            BlockingIOError: nothing has come.
        """
        data, ancillary, _, _ = self._socket.recvmsg(_MAX_REPORT_BYTES, socket.CMSG_SPACE(CREDENTIALS.size))
        users = [
            CREDENTIALS.unpack(found)[1] for _, kind, found in ancillary if kind == socket.SCM_CREDENTIALS
        ]  # fmt: skip
        return Report.decode(data) if users == [os.getuid()] else None

    def close(self) -> None:
        """May be called twice."""
        self._socket.close()


def _address(path: str) -> str:
    """A name that begins with @ belongs to no file."""
    return "\0" + path[1:] if path.startswith("@") else path


def supervised_environment(name: str, socket_path: str) -> Mapping[str, str]:
    """What the environment of a child must have, for the child called `name` of this process. See Reports.path."""
    return {_SOCKET: socket_path, _PROCESS: str(os.getpid()), _NAME: name}


def control_path(environment: Mapping[str, str]) -> str:
    """Address of the socket at which the supervisor takes orders; empty without a supervisor."""
    reports = environment.get(_SOCKET, "")
    return _address(f"{reports}.control") if reports else ""


def supervised_name() -> str:
    """The name that the supervisor gave this process, such as engine-1; empty without one."""
    return os.environ.get(_NAME, "")


def report(stage: Stage, fraction: float | None = None, message: str = "") -> bool:
    """Tells the supervisor; returns whether there is one that heard it."""
    if not (path := os.environ.get(_SOCKET)):
        return False
    told = json.dumps(asdict(Report(supervised_name(), stage, fraction, message))).encode()
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.settimeout(_SEND_SECONDS)
        sender.sendto(told, _address(path))
        return True
    return False


def end_with_supervisor() -> None:
    """Has the kernel end this process at once when its supervisor is gone, however it went (on Linux)."""
    if parent := os.environ.get(_PROCESS):
        end_with_parent(int(parent))


def end_with_parent(parent: int) -> None:
    """As `end_with_supervisor`, of the process with that number, which has started this one.

    It is the end of the thread that started it which counts.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was gone before
            sys.exit(1)
