"""Ranks started by a launcher such as torchrun: rank 0's process is the worker, and the others connect to it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from engine_svc.executor.broadcast import Inbox
from engine_svc.executor.interfaces import use_interface_of
from engine_svc.executor.joined import JoinedRanks
from engine_svc.executor.multiproc import RankProcesses
from engine_svc.executor.network import RankListener, connect, own_address
from engine_svc.executor.ranked import RankedExecutor
from engine_svc.executor.ranks import RankGroup
from quire.errors import StartupError
from quire.options.engine import EngineOptions
from quire.options.model import ModelOptions
from quire.options.parallel import ParallelOptions

# Time for all processes of a launch to start, including importing torch.
_MEET_SECONDS = 300.0


@dataclass(frozen=True)
class Launch:
    """What the launcher's environment and the options say about this process.

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
    """Reads the launcher's environment variables.

    Raises:
        StartupError: this process was not launched as a rank, or the launch does not match the options.
    """
    environment = {"LOCAL_RANK": "0", **environment}
    names = ("RANK", "WORLD_SIZE", "MASTER_PORT", "LOCAL_RANK")
    rank, world_size, master_port, local_rank = (_number(environment, name) for name in names)
    if not (address := environment.get("MASTER_ADDR", "")):
        raise _not_launched("MASTER_ADDR is missing")
    if world_size != options.num_ranks:
        raise StartupError(f"{world_size} ranks are launched, but the options describe {options.num_ranks}.")
    if not options.executor.rank_secret:
        raise StartupError(
            "--distributed-executor-backend external_launcher needs --rank-secret, the same for all ranks: with it "
            "they prove that they belong to this worker. QUIRE_RANK_SECRET keeps it out of the process list."
        )
    port = options.executor.rank_port or master_port + 1
    return Launch(rank, world_size, local_rank, address, port, options.executor.rank_secret.encode())


def _number(environment: Mapping[str, str], name: str) -> int:
    """The value of one of the launcher's variables."""
    value = environment.get(name)
    if value is None:
        raise _not_launched(f"{name} is missing")
    if not value.isdecimal():
        raise _not_launched(f"{name} is {value!r}, not a number")
    return int(value)


def _not_launched(why: str) -> StartupError:
    return StartupError(
        f"--distributed-executor-backend external_launcher: {why}; RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT are "
        "needed. Start every rank with torchrun (docs/scaling.md), or use mp."
    )


def obey(launch: Launch) -> None:
    """Serves as a rank other than 0, until the worker is gone.

    Raises:
        StartupError: there is no worker, or it refuses this rank.
    """
    from engine_svc.executor.rank import RankProcess

    use_interface_of(own_address(launch.address))
    try:
        channel = connect(
            launch.address, launch.port, launch.secret, launch.rank, launch.local_rank, _MEET_SECONDS
        )  # fmt: skip
    except OSError as error:
        raise StartupError(f"Rank {launch.rank}: {error}") from error
    for told_to_end in (signal.SIGTERM, signal.SIGINT):  # the worker gets them too, and needs this rank to end requests
        signal.signal(told_to_end, signal.SIG_IGN)
    RankProcess(channel, Inbox(channel)).serve()


class ExternalExecutor(RankedExecutor):
    """Waits for the other ranks to connect, and starts rank 0 as a child process."""

    spans_machines = True

    def _start(self, model: ModelOptions, options: EngineOptions) -> RankGroup:
        launch = read_launch(options.parallel)
        host = options.parallel.executor.host_ip or own_address(launch.address)
        use_interface_of(host)
        try:
            with contextlib.closing(RankListener(host, launch.port, launch.secret)) as listener:
                others = listener.accept(set(range(1, launch.world_size)), _MEET_SECONDS, lambda missing: None)
        except OSError as error:
            raise StartupError(f"The ranks of external_launcher at {host}:{launch.port}: {error}") from error
        own = RankProcesses(1, shares_memory=False)
        return JoinedRanks(own, [launch.local_rank], [others[rank] for rank in sorted(others)], "env://")
