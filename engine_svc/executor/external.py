"""Ranks that somebody else has started, such as torchrun: rank 0's process is the worker, the others come to it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from engine_svc.executor.broadcast import Broadcast, Inbox
from engine_svc.executor.interfaces import use_interface_of
from engine_svc.executor.multiproc import RankProcesses
from engine_svc.executor.network import Arrival, RankListener, connect, own_address
from engine_svc.executor.ranked import RankedExecutor
from engine_svc.executor.ranks import RankGroup
from quire.errors import StartupError
from quire.options.engine import EngineOptions
from quire.options.parallel import ParallelOptions

# For all processes of a launch to come up, which import torch first.
_MEET_SECONDS = 300.0


@dataclass(frozen=True)
class Launch:
    """What the launcher says to each of its processes, and the options to all.

    Attributes:
        address, port: where rank 0 waits for the others.
    """

    rank: int
    world_size: int
    local_rank: int
    address: str
    port: int
    secret: bytes


def read_launch(options: ParallelOptions, environment: Mapping[str, str] = os.environ) -> Launch:
    """
    Raises:
        StartupError: nobody has launched this process as a rank, or not as the options have it.
    """
    try:
        rank, world_size, master_port = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
        address = environment["MASTER_ADDR"]
        local_rank = int(environment.get("LOCAL_RANK", "0"))
    except (KeyError, ValueError) as error:
        raise StartupError(
            f"--distributed-executor-backend external_launcher: {error} is missing, or no number, among RANK, "
            "WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Start every rank by torchrun (docs/scaling.md), or take mp."
        ) from error
    if world_size != options.num_ranks:
        raise StartupError(f"{world_size} ranks are launched, and the options describe {options.num_ranks}.")
    if not options.executor.rank_secret:
        raise StartupError(
            "--distributed-executor-backend external_launcher needs --rank-secret, the same for all ranks: it is how "
            "they prove that they belong to this worker. QUIRE_RANK_SECRET keeps it out of the list of processes."
        )
    port = options.executor.rank_port or master_port + 1
    return Launch(rank, world_size, local_rank, address, port, options.executor.rank_secret.encode())


def obey(launch: Launch) -> None:
    """Serves as a rank other than 0, until the worker goes.

    Raises:
        StartupError: there is no worker, or it does not take this rank.
    """
    from engine_svc.executor.rank import RankProcess

    use_interface_of(own_address(launch.address))
    try:
        channel = connect(
            launch.address, launch.port, launch.secret, launch.rank, launch.local_rank, _MEET_SECONDS
        )  # fmt: skip
    except OSError as error:
        raise StartupError(f"Rank {launch.rank}: {error}") from error
    for told_to_end in (signal.SIGTERM, signal.SIGINT):  # the worker is told too, and needs this rank for what it ends
        signal.signal(told_to_end, signal.SIG_IGN)
    RankProcess(channel, Inbox(channel)).serve()


class ExternalExecutor(RankedExecutor):
    """Waits for the other ranks, and starts rank 0 as its own child."""

    def _start(self, options: EngineOptions) -> RankGroup:
        launch = read_launch(options.parallel)
        host = options.parallel.executor.host_ip or own_address(launch.address)
        return ExternalRanks(launch, host)


class ExternalRanks(RankGroup):
    """Rank 0 beside us, and the others wherever they are."""

    def __init__(self, launch: Launch, host: str) -> None:
        """
        Raises:
            StartupError: the port is taken, or not all ranks have come.
        """
        use_interface_of(host)
        try:
            with contextlib.closing(RankListener(host, launch.port, launch.secret)) as listener:
                others = listener.accept(set(range(1, launch.world_size)), _MEET_SECONDS, lambda: None)
        except OSError as error:
            raise StartupError(f"The ranks of external_launcher at {host}:{launch.port}: {error}") from error
        self._first = RankProcesses(1, shares_memory=False)
        self._others: list[Arrival] = [others[rank] for rank in sorted(others)]
        self.channels = [*self._first.channels, *(other.channel for other in self._others)]
        self.devices = [launch.local_rank, *(other.device for other in self._others)]
        self.broadcast = Broadcast(self.channels)
        self.rendezvous = "env://"

    def name(self, rank: int) -> str:
        """See RankGroup."""
        return self._first.name(0) if rank == 0 else f"rank {rank} (at {self._others[rank - 1].address})"

    def end(self, rank: int) -> str:
        """See RankGroup."""
        return self._first.end(0) if rank == 0 else "is gone"

    def tell_where(self) -> None:
        """See RankGroup: rank 0 alone."""
        self._first.tell_where()

    def kill(self) -> None:
        """See RankGroup. The others end when their channels do, and their launcher looks after them."""
        self._first.kill()
        for other in self._others:
            other.channel.shut()

    def wait(self) -> None:
        """See RankGroup."""
        self._first.wait()
