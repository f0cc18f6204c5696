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
from quire.log import log_options, setup_logging
from quire.options.log import LogOptions
from quire.supervised import end_with_parent

# How long all children together may take to end by themselves.
_CLOSE_SECONDS = 10.0
# A process's channel is closed a moment before the process has ended.
_END_SECONDS = 1.0


class Child(msgspec.Struct, frozen=True):
    """Arguments of a rank process: the descriptors that it inherits, its parent's process id, and options of its log if
    they do not come with its first command."""

    channel: int
    parent: int
    slots: SlotsPlace | None = None
    log: LogOptions | None = None


def start_child(module: str, slots: SlotsPlace | None, inherited: list[int]) -> tuple[Channel, subprocess.Popen[bytes]]:
    """Starts a module whose `run` calls `begin_child` with its only argument.

    Args:
        inherited: further descriptors that the child inherits under the same numbers.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        child = Child(theirs.fileno(), os.getpid(), slots)
        return Channel(ours), _start(module, child, inherited)


def start_child_at(channel: Channel, module: str) -> subprocess.Popen[bytes]:
    """Like `start_child`, for a child that takes over this process's channel to a worker, and its log."""
    child = Child(channel.fileno(), os.getpid(), log=log_options())
    process = _start(module, child, [])
    channel.leave()
    return process


def _start(module: str, child: Child, inherited: list[int]) -> subprocess.Popen[bytes]:
    # In its own session: Ctrl-C is for the worker, which lets its requests end first.
    return subprocess.Popen(  # noqa: S603  (our own command line, no shell)
        [sys.executable, "-m", "engine_svc.executor.start", module, msgspec.json.encode(child).decode()],
        pass_fds=[child.channel, *([child.slots.descriptor] if child.slots else []), *inherited],
        start_new_session=True,
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
    if child.log is not None:
        setup_logging("engine", child.log)
    channel = Channel(socket.socket(fileno=child.channel))
    return channel, Inbox(channel, SlotReader(child.slots) if child.slots else None)
