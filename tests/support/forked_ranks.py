"""Ranks that have imported everything when they start: forks of a process that has done only that.

Importing what a rank needs takes longer than most tests of ranks. Otherwise they are like those that a worker starts,
or with `run_forks`, like `python -c`.
"""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.reduction import DupFd
from typing import Any

import msgspec
import pytest

from engine_svc.executor import multiproc
from engine_svc.executor.channel import Channel
from engine_svc.executor.child import Child, begin_child
from engine_svc.executor.slots import SlotsPlace

MODULE = "engine_svc.executor.rank"
PRELOADED = (MODULE, "engine_svc.runner.runner")
STANDARD_STREAMS = (1, 2)
_ABOVE_ALL = 512  # descriptors that a new process has

start_by_command = multiproc.start_child


class ForkedProcess:
    """The part of Popen's interface that a worker needs."""

    def __init__(self, process: Any) -> None:
        self._process = process
        self.pid: int = process.pid

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(MODULE, timeout or 0.0)
        return int(self._process.exitcode)

    def send_signal(self, number: int) -> None:
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self._process.kill()


class Descriptor:
    """A file descriptor that is passed to a fork, where it becomes the descriptor's number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _detach, (DupFd(self.number),)


def _detach(duplicate: Any) -> int:
    return int(duplicate.detach())


def run_rank(child: Child, numbers: Sequence[int], came: Sequence[int], environment: dict[str, str]) -> None:
    """Runs in the fork: does what a rank's command line would, with the same files under the same numbers."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    # Whoever makes a lock for processes, as tqdm does, writes to this: it would be what stands in its place.
    tracker: Any = resource_tracker._resource_tracker
    tracker._fd = fcntl.fcntl(tracker._fd, fcntl.F_DUPFD_CLOEXEC, _ABOVE_ALL)
    # What has come may stand in the place of others of them.
    apart = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _ABOVE_ALL) for descriptor in came]
    for descriptor, number in zip(apart, numbers, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    for descriptor in set(came) - set(numbers):
        os.close(descriptor)

    from engine_svc.executor.rank import RankProcess

    told = msgspec.structs.replace(child, parent=os.getppid())
    RankProcess(*begin_child(msgspec.json.encode(told).decode())).serve()


def start_forked(module: str, slots: SlotsPlace | None, inherited: list[int]) -> tuple[Channel, Any]:
    """See start_child."""
    if module != MODULE:
        return start_by_command(module, slots, inherited)
    context = multiprocessing.get_context("forkserver")
    ours, theirs = socket.socketpair()
    with theirs:
        numbers = [theirs.fileno(), *([slots.descriptor] if slots else []), *inherited, *STANDARD_STREAMS]
        arguments = (
            Child(theirs.fileno(), 0, slots), numbers, [Descriptor(number) for number in numbers], dict(os.environ),
        )  # fmt: skip
        process = context.Process(target=run_rank, args=arguments, daemon=True)
        process.start()
    return Channel(ours), ForkedProcess(process)


def run_forks(code: str, arguments: Sequence[Sequence[object]], seconds: float = 120) -> list[int | None]:
    """Runs a program in parallel, once per list of arguments; returns exit codes, None for those not done in time."""
    multiprocessing.set_forkserver_preload(list(PRELOADED))
    context = multiprocessing.get_context("forkserver")
    processes = [context.Process(target=_run_code, args=(code, [str(each) for each in own])) for own in arguments]
    for process in processes:
        process.start()
    deadline = time.monotonic() + seconds
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    codes = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
        process.join()
    return codes


def _run_code(code: str, arguments: list[str]) -> None:
    """Runs in the fork."""
    sys.argv = ["-c", *arguments]
    exec(compile(code, "-c", "exec"), {"__name__": "__main__"})


@contextmanager
def forked_ranks() -> Iterator[None]:
    """Context in which `mp` workers in this process start their ranks as forks."""
    multiprocessing.set_forkserver_preload(list(PRELOADED))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(multiproc, "start_child", start_forked)
        yield
