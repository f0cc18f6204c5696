"""One process per rank, on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time

from engine_svc.executor.channel import Channel
from engine_svc.executor.ranked import RankedExecutor
from engine_svc.executor.ranks import RankGroup
from engine_svc.parallel.layout import layout_of
from quire.options.engine import EngineOptions

# For those that are told to end, and for those that have been killed.
_CLOSE_SECONDS = 10.0
# A process's channel is closed a moment before the process has ended.
_END_SECONDS = 1.0
# What all ranks together are given to write down where they are, one after the other.
_WRITE_SECONDS = 0.5


class MultiprocExecutor(RankedExecutor):
    """Starts the ranks, which die with it however it dies."""

    def _start(self, options: EngineOptions) -> RankGroup:
        return RankProcesses(layout_of(options.parallel).num_ranks)


class RankProcesses(RankGroup):
    """Child processes, each with one end of a socket pair."""

    def __init__(self, num_ranks: int, module: str = "engine_svc.executor.rank") -> None:
        """
        Args:
            module: what each runs; see there.
        """
        self._module = module
        self._processes: list[subprocess.Popen[bytes]] = []
        self.channels: list[Channel] = []
        self.devices = range(num_ranks)
        # A file without a name, which ranks inherit: nothing of it outlives them.
        self._meeting = os.memfd_create("quire-ranks")
        self.rendezvous = f"file:///proc/self/fd/{self._meeting}"
        for _ in range(num_ranks):
            self._start()

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            # A session of its own: Ctrl-C is for the worker, which lets its requests end first.
            process = subprocess.Popen(  # noqa: S603  (our own command line, no shell)
                [sys.executable, "-m", self._module, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno(), self._meeting], start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        self.channels.append(Channel(ours))

    def name(self, rank: int) -> str:
        """See RankGroup."""
        return f"rank {rank} (process {self._processes[rank].pid})"

    def end(self, rank: int) -> str:
        """See RankGroup."""
        try:
            code = self._processes[rank].wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return "has closed its channel"
        if code >= 0:
            return f"ended with exit code {code}"
        advice = ", as the kernel does when memory runs out" if -code == signal.SIGKILL else ""
        return f"was killed by {signal.Signals(-code).name}{advice}"

    def tell_where(self) -> None:
        """See RankGroup. A process that is stopped, or stuck in the kernel, says nothing."""
        for process in self._processes:
            process.send_signal(signal.SIGUSR1)  # see rank.py
            time.sleep(_WRITE_SECONDS / len(self._processes))

    def kill(self) -> None:
        """See RankGroup."""
        for process in self._processes:
            process.kill()

    def wait(self) -> None:
        """See RankGroup."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()
        for process in self._processes:
            process.wait()
        if self._meeting >= 0:
            os.close(self._meeting)
            self._meeting = -1
