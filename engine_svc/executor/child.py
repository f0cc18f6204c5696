"""Starts rank processes as children of the worker, and passes them their arguments."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import subprocess
import sys

import msgspec

from engine_svc.executor.broadcast import Inbox
from engine_svc.executor.channel import Channel
from engine_svc.executor.slots import SlotReader, SlotsPlace
from quire.supervised import end_with_parent


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
        child = Child(theirs.fileno(), os.getpid(), slots)
        # In its own session: Ctrl-C is for the worker, which lets its requests end first.
        process = subprocess.Popen(  # noqa: S603  (our own command line, no shell)
            [sys.executable, "-m", "engine_svc.executor.start", module, msgspec.json.encode(child).decode()],
            pass_fds=[child.channel, *([slots.descriptor] if slots else []), *inherited], start_new_session=True,
        )  # fmt: skip
    return Channel(ours), process


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
