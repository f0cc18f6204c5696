"""An executor with one process per rank: on this machine, or on each of several nodes."""

from __future__ import annotations

import os
import signal
import time

from engine_svc.executor.broadcast import Broadcast
from engine_svc.executor.child import end_children, how_it_ended, start_child
from engine_svc.executor.joined import JoinedRanks
from engine_svc.executor.ranked import RankedExecutor
from engine_svc.executor.ranks import RankGroup
from engine_svc.executor.rendezvous import await_nodes
from engine_svc.executor.slots import SlotWriter
from engine_svc.parallel.layout import layout_of
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions

# Time for all ranks together to write their stacks, one after the other.
_WRITE_SECONDS = 0.5


class MultiprocExecutor(RankedExecutor):
    """Starts the ranks as child processes, which end when this process ends for any reason."""

    def _start(self, model: ModelOptions, options: EngineOptions) -> RankGroup:
        layout, parallel = layout_of(options.parallel), options.parallel
        if parallel.nodes.nnodes == 1:
            return RankProcesses(layout.num_ranks, num_stages=layout.pipeline)
        others = await_nodes(model, options)
        own = RankProcesses(parallel.num_local_ranks, shares_memory=False)
        return JoinedRanks(own, own.devices, others.ranks, others.rendezvous)


class RankProcesses(RankGroup):
    """Child processes, each with one end of a socket pair."""

    def __init__(
        self,
        num_ranks: int,
        module: str = "engine_svc.executor.rank",
        num_stages: int = 1,
        shares_memory: bool = True,
    ) -> None:
        """
        Args:
            module: module that each process runs; see start_child.
            num_stages: number of steps that may be under way, besides one that waits.
        """
        self.devices = range(num_ranks)
        # An anonymous file that ranks inherit: nothing of it outlives them.
        self._meeting = os.memfd_create("quire-ranks")
        self.rendezvous = f"file:///proc/self/fd/{self._meeting}"
        # A step has two messages, plan and masks; a rank may not have read any of the steps under way.
        slots = SlotWriter(2 * (num_stages + 1) + 2) if shares_memory else None
        started = [start_child(module, slots.place if slots else None, [self._meeting]) for _ in self.devices]
        self.channels = [channel for channel, _ in started]
        self._processes = [process for _, process in started]
        self.broadcast = Broadcast(self.channels, slots)

    def name(self, rank: int) -> str:
        """See RankGroup."""
        return f"rank {rank} (process {self._processes[rank].pid})"

    def end(self, rank: int) -> str:
        """See RankGroup."""
        return how_it_ended(self._processes[rank])

    def tell_where(self) -> None:
        """See RankGroup. A process that is stopped or stuck in the kernel writes nothing."""
        for process in self._processes:
            process.send_signal(signal.SIGUSR1)  # see begin_child
            time.sleep(_WRITE_SECONDS / len(self._processes))

    def kill(self) -> None:
        """See RankGroup."""
        for process in self._processes:
            process.kill()

    def wait(self) -> None:
        """See RankGroup."""
        end_children(self._processes)
        if self._meeting >= 0:
            os.close(self._meeting)
            self._meeting = -1
