"""Starts rank processes as children of this process, passes them their arguments, and ends them."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

import msgspec

from engine_svc.executor.broadcast import Inbox
from engine_svc.executor.channel import Channel
from engine_svc.executor.slots import SlotReader, SlotsPlace
from quire.supervised import end_with_parent

# How long all children together may take to end by themselves.
_CLOSE_SECONDS = 10.0
# A process's channel is closed a moment before the process has ended.
_END_SECONDS = 1.0


class Child(msgspec.Struct, frozen=True):
    """Arguments of a rank process: the descriptors that it inherits, and its parent's process id."""

    channel: int
    parent: int
    slots: SlotsPlace | None = None


def start_child(module: str, slots: SlotsPlace | None, inherited: list[int]) -> tuple[Channel, subprocess.Popen[bytes]]:
    """Starts a module whose `run` calls `begin_child` with its only argument.

    Args:
        inherited: further descriptors that the child inherits under the same numbers.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        return Channel(ours), start_child_at(theirs.fileno(), module, slots, inherited)


def start_child_at(
    connection: int, module: str, slots: SlotsPlace | None = None, inherited: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Like `start_child`, for a child whose channel is this socket's descriptor, which it inherits."""
    child = Child(connection, os.getpid(), slots)
    # In its own session: Ctrl-C is for the worker, which lets its requests end first.
    return subprocess.Popen(  # noqa: S603  (our own command line, no shell)
        [sys.executable, "-m", "engine_svc.executor.start", module, msgspec.json.encode(child).decode()],
        pass_fds=[connection, *([slots.descriptor] if slots else []), *inherited], start_new_session=True,
    )  # fmt: skip


def how_it_ended(process: subprocess.Popen[bytes]) -> str:
    """How a child whose channel is closed ended, e.g. 'was killed by SIGKILL'. Waits a moment to find out."""
    try:
        code = process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        return "has closed its channel"
    if code >= 0:
        return f"ended with exit code {code}"
    advice = ", as the kernel does when memory runs out" if -code == signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-code).name}{advice}"


def end_children(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Waits for children, whose channels are closed, to end by themselves; kills those that take too long."""
    deadline = time.monotonic() + _CLOSE_SECONDS
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    for process in processes:
        process.kill()
    for process in processes:
        process.wait()


def begin_child(argument: str) -> tuple[Channel, Inbox]:
    """Sets up a rank process: it ends with its parent, and writes its stacks on SIGUSR1.

    Returns:
        The channel for answers, and the inbox for commands.
    """
    child = msgspec.json.decode(argument, type=Child)
    end_with_parent(child.parent)
    faulthandler.register(signal.SIGUSR1)
    channel = Channel(socket.socket(fileno=child.channel))
    return channel, Inbox(channel, SlotReader(child.slots) if child.slots else None)
