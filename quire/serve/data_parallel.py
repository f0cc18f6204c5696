"""Determines which data-parallel ranks this machine runs, and what else of the stack."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from quire.errors import StartupError
from quire.options.data_parallel import RAY, DataParallelOptions
from quire.options.parallel import DATA_PARALLEL_RPC_PORT, ParallelOptions
from quire.rpc.discovery import join_address, own_address_towards

_RANK, _START, _LOCAL = "--data-parallel-rank", "--data-parallel-start-rank", "--data-parallel-size-local"
_HYBRID = "--data-parallel-hybrid-lb"


class Balancing(Enum):
    """What chooses the rank for a request."""

    INTERNAL = auto()  # the first node's router chooses among all ranks
    HYBRID = auto()  # an external load balancer chooses the node, and its router the rank
    EXTERNAL = auto()  # an external load balancer


@dataclass(frozen=True)
class LocalRanks:
    """The data-parallel ranks of this machine.

    Attributes:
        size: number of ranks on all machines.
        address: address of the first node.
        rpc_port: port of the router there; 0 means any free one.
        headless: whether the router is on another machine.
        node_rank: number of this machine among those that share one engine; only the first one is its worker.
        by_ray: whether Ray provides the ranks' GPUs, on whatever machine.
    """

    size: int
    ranks: range
    balancing: Balancing
    address: str
    rpc_port: int
    headless: bool
    by_ray: bool
    node_rank: int = 0

    @property
    def elsewhere(self) -> bool:
        """Whether other machines have ranks too."""
        return len(self.ranks) < self.size

    @property
    def has_members_elsewhere(self) -> bool:
        """Whether this machine's router also balances ranks of other machines."""
        return self.elsewhere and self.balancing is Balancing.INTERNAL and not self.headless

    @property
    def registers_elsewhere(self) -> bool:
        """Whether this machine's engines register with a router of another machine."""
        return self.headless and not self.node_rank

    @property
    def router(self) -> str:
        """host:port of the first node's router."""
        return join_address(self.address, self.rpc_port)


def find_local_ranks(parallel: ParallelOptions, options: DataParallelOptions) -> LocalRanks:
    """Derives this machine's ranks from the options.

    Raises:
        StartupError: options contradict each other.
    """
    parallel.check_nodes()
    node_rank = parallel.nodes.node_rank
    if node_rank and not options.headless:
        raise StartupError(f"--node-rank {node_rank} has no API: add --headless. Only node 0 serves requests.")
    balancing = _balancing(parallel, options)
    size, local = parallel.data_parallel_size, options.data_parallel_size_local
    if balancing is Balancing.EXTERNAL:
        start, local = parallel.data_parallel_rank or 0, 1
    else:
        start = options.data_parallel_start_rank or 0
        local = size - start if local is None else local
    if start + local > size or start >= size:
        last = f"ranks {start} to {start + local - 1}" if local > 1 else f"rank {start}"
        raise StartupError(
            f"This machine would have {last}, but --data-parallel-size {size} has only ranks 0 to {size - 1}. Ranks "
            "are counted across all machines, from 0."
        )
    _check_backend(parallel, options, size, local)
    if options.headless and not local:
        raise StartupError(f"--headless with {_LOCAL} 0 would start nothing. Leave one of them out.")
    port = options.data_parallel_rpc_port or (DATA_PARALLEL_RPC_PORT if local < size or options.headless else 0)
    by_ray = options.data_parallel_backend == RAY
    return LocalRanks(
        size, range(start, start + local), balancing, parallel.data_parallel_address, port, options.headless, by_ray,
        node_rank,
    )  # fmt: skip


def _check_backend(parallel: ParallelOptions, options: DataParallelOptions, size: int, local: int) -> None:
    """Checks the options that go with --data-parallel-backend.

    Raises:
        StartupError: Ray was chosen for the ranks, and another option contradicts that.
    """
    if options.data_parallel_backend != RAY:
        return
    if parallel.data_parallel_rank is None and local < size:
        raise StartupError(
            "With --data-parallel-backend ray, all engines are processes of one machine, and Ray finds GPUs for them "
            f"on other machines: leave out {_LOCAL}, {_START} and --headless."
        )
    if parallel.distributed_executor_backend not in (None, "auto", RAY):
        raise StartupError(
            "--data-parallel-backend ray implies --distributed-executor-backend ray, not "
            f"{parallel.distributed_executor_backend}. Leave out --distributed-executor-backend."
        )


def _balancing(parallel: ParallelOptions, options: DataParallelOptions) -> Balancing:
    """Derives from the options what chooses the rank.

    Raises:
        StartupError: options contradict each other.
    """
    start, rank = options.data_parallel_start_rank, parallel.data_parallel_rank
    if rank is not None:
        unfit = {
            _START: start not in (None, rank), _LOCAL: options.data_parallel_size_local not in (None, 1),
            _HYBRID: options.data_parallel_hybrid_lb, "--headless": options.headless,
        }  # fmt: skip
        if wrong := [flag for flag, is_wrong in unfit.items() if is_wrong]:
            raise StartupError(
                f"{_RANK} {rank} starts a stack with only that rank, behind an external load balancer: leave out "
                f"{', '.join(wrong)}. To run several ranks on a node, use {_START} instead."
            )
        return Balancing.EXTERNAL
    if options.headless and options.data_parallel_hybrid_lb:
        raise StartupError(f"--headless nodes have no API, but {_HYBRID} gives each node one. Leave one of them out.")
    if options.headless and start is None and not parallel.nodes.node_rank:
        raise StartupError(
            f"--headless needs {_START}: the first of this machine's ranks; or, with --nnodes, --node-rank."
        )
    if options.data_parallel_hybrid_lb and start is None:
        raise StartupError(f"{_HYBRID} needs {_START}: the first of this machine's ranks.")
    if options.data_parallel_hybrid_lb:
        return Balancing.HYBRID
    if start and not options.headless:
        raise StartupError(
            f"{_START} {start} makes this an additional node. Choose whether it has its own API: {_HYBRID} if it does, "
            "--headless if the first node's router balances among all ranks."
        )
    return Balancing.INTERNAL


def own_address_at(address: str, port: int) -> str:
    """The address of this machine as the first node sees it.

    Raises:
        StartupError: the name does not exist, or there is no route to it.
    """
    try:
        return own_address_towards(address, port)
    except OSError as error:
        raise StartupError(f"--data-parallel-address {address} cannot be reached: {error.strerror}.") from error
