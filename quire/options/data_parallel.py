"""Options of `quire serve` that say which data-parallel ranks a machine runs, and who balances between them."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option
from quire.options.parallel import DATA_PARALLEL_RPC_PORT

RAY = "ray"


@dataclass(frozen=True)
class DataParallelOptions:
    """Data-parallel ranks over several nodes."""

    data_parallel_size_local: int | None = option(
        None, "Data-parallel ranks on this machine; 0 has none beside the API. Default: all, or all from the start "
        "rank on.", aliases=("-dpl",), minimum=0, maximum=64,
    )  # fmt: skip
    data_parallel_start_rank: int | None = option(
        None, "The first rank on this machine.", aliases=("-dpr",), minimum=0, maximum=1023
    )
    data_parallel_rpc_port: int = option(
        0, "Port of the router's gRPC service, where engines on other nodes register themselves. Default: "
        f"{DATA_PARALLEL_RPC_PORT} where there are any, else a free one.", aliases=("-dpp", "--router-port"),
        minimum=0, maximum=65535,
    )  # fmt: skip
    data_parallel_backend: str = option(
        "mp", "Where engines compute: mp, on the machine of their `quire serve`; ray, where a Ray cluster has GPUs. "
        "Then all engines are processes of one machine, with --distributed-executor-backend ray.", aliases=("-dpb",),
        choices=("mp", RAY),
    )  # fmt: skip
    data_parallel_hybrid_lb: bool = option(
        False, "Each node has an API of its own, which balances between the node's ranks, and something outside "
        "balances between nodes. Needs --data-parallel-start-rank.",
    )  # fmt: skip
    headless: bool = option(
        False, "Runs engines without API, router and tokenizer: a further node, whose engines register with the "
        "router at --data-parallel-address and --data-parallel-rpc-port, or those that --register-with names. Needs "
        "--data-parallel-start-rank.",
    )  # fmt: skip
