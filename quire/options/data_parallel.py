"""Options of `quire serve` that say which data-parallel ranks a machine runs, and who balances between them."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option
from quire.options.parallel import DATA_PARALLEL_RPC_PORT

RAY = "ray"


@dataclass(frozen=True)
class DataParallelOptions:
    """Data-parallel ranks on several nodes."""

    data_parallel_size_local: int | None = option(
        None, "Number of data-parallel ranks on this machine; 0 runs only the API here. Default: all ranks, or all "
        "from the start rank on.", aliases=("-dpl",), minimum=0, maximum=64,
    )  # fmt: skip
    data_parallel_start_rank: int | None = option(
        None, "First data-parallel rank on this machine.", aliases=("-dpr",), minimum=0, maximum=1023
    )
    data_parallel_rpc_port: int = option(
        0, "Port of the router's gRPC service, where engines on other nodes register. Default: "
        f"{DATA_PARALLEL_RPC_PORT} if there are other nodes, else a free port.", aliases=("-dpp", "--router-port"),
        minimum=0, maximum=65535,
    )  # fmt: skip
    data_parallel_backend: str = option(
        "mp", "Where engines compute: mp, on the machine of their `quire serve`; ray, wherever a Ray cluster has GPUs. "
        "With ray, all engines are processes of one machine and use --distributed-executor-backend ray.",
        aliases=("-dpb",),
        choices=("mp", RAY),
    )  # fmt: skip
    data_parallel_hybrid_lb: bool = option(
        False, "Each node has its own API, which balances among the node's ranks; an external load balancer balances "
        "among nodes. Needs --data-parallel-start-rank.",
    )  # fmt: skip
    headless: bool = option(
        False, "Runs only engines, without API, router and tokenizer: an additional node, whose engines register with "
        "the router at --data-parallel-address and --data-parallel-rpc-port, or with those named by --register-with. "
        "Needs --data-parallel-start-rank; or --node-rank, whose ranks belong to the engine of node 0.",
    )  # fmt: skip
