"""The child side of a `ChildPool`: a process that reads messages on stdin and writes answers to stdout.

It limits its memory, kills itself when it works on one message for too long, and ends with its parent.
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
TAKEN = b"+"  # sent once the message is read, before the answer: from then on it may be why the process dies

_MAX_MEMORY_BYTES = 2**30  # on top of what it has mapped before the first message
# Added to the parent's own time limit, in case the parent is gone.
_GRACE_SECONDS = 1.0


@dataclass(frozen=True)
class Message:
    """A message in a pipe: JSON-serializable fields, and raw bytes."""

    fields: dict[str, Any] = field(default_factory=dict)
    payload: bytes = b""

    def pack(self) -> bytes:
        """Serializes the message for a pipe."""
        fields = json.dumps(self.fields).encode()
        return HEADER.pack(len(fields), len(self.payload)) + fields + self.payload


Answer = Callable[[Message], Message]


def run(make: Callable[[Message], Answer]) -> None:
    """Answers messages until stdin ends.

    Args:
        make: called with the first message, the pool's setup; the function it returns answers all others.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    with contextlib.suppress(BrokenPipeError):  # the parent no longer waits for the answer
        if (setup := _read(requests)) is None:
            return
        answer = make(setup)
        _limit_memory()
        while (request := _read(requests)) is not None:
            signal.setitimer(signal.ITIMER_REAL, setup.fields["timeout_seconds"] + _GRACE_SECONDS)  # SIGALRM kills it
            answers.write(TAKEN)
            answers.flush()
            result = answer(request)
            signal.setitimer(signal.ITIMER_REAL, 0)
            answers.write(result.pack())
            answers.flush()
            del request, result  # each may be large, and would take memory from the next
        return
    os._exit(0)  # skips flushing stdout, which would fail again


def _limit_memory() -> None:
    mapped = 0
    with contextlib.suppress(OSError):
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limit = mapped + _MAX_MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _read(pipe: BinaryIO) -> Message | None:
    """Reads the next message; None means the end of the stream."""
    header = pipe.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    fields_size, payload_size = HEADER.unpack(header)
    return Message(json.loads(pipe.read(fields_size)), pipe.read(payload_size))
