"""A process that works for a `ChildPool`: messages come on stdin and go out on stdout.

It is limited in memory, kills itself when it works on one message for too long, and ends with its parent.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

HEADER = struct.Struct("!II")  # sizes of a message's fields and of its payload
TAKEN = b"+"  # comes before the answer, once the message is there: from then on it is what the process may die of

_MAX_MEMORY_BYTES = 2**30  # beyond what it takes before it works on anything
# Beyond the parent's own time limit: for a parent that is not there any more.
_GRACE_SECONDS = 1.0


@dataclass(frozen=True)
class Message:
    """What goes through a pipe: fields that JSON can hold, and bytes that go as they are."""

    fields: dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""

    def pack(self) -> bytes:
        """As it goes through a pipe."""
        fields = json.dumps(self.fields).encode()
        return HEADER.pack(len(fields), len(self.payload)) + fields + self.payload


Answer = Callable[[Message], Message]


def run(make: Callable[[Message], Answer]) -> None:
    """Answers messages until stdin ends.

    Args:
        make: called with the first message, the pool's set-up; what it returns answers all others.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    with contextlib.suppress(BrokenPipeError):  # nobody waits for the answer any more
        if (setup := _read(requests)) is None:
            return
        answer = make(setup)
        _limit_memory()
        while (request := _read(requests)) is not None:
            signal.setitimer(signal.ITIMER_REAL, setup.fields["timeout_seconds"] + _GRACE_SECONDS)  # SIGALRM ends it
            answers.write(TAKEN)
            answers.flush()
            result = answer(request)
            signal.setitimer(signal.ITIMER_REAL, 0)
            answers.write(result.pack())
            answers.flush()
        return
    os._exit(0)  # the pipe still has what cannot be written


def _limit_memory() -> None:
    mapped = 0
    with contextlib.suppress(OSError):
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = mapped + _MAX_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _read(pipe: BinaryIO) -> Message | None:
    """The next message; None at the end."""
    header = pipe.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    fields_size, payload_size = HEADER.unpack(header)
    return Message(json.loads(pipe.read(fields_size)), pipe.read(payload_size))
