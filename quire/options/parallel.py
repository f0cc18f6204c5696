"""Options of the parallel layout."""

from __future__ import annotations

from dataclasses import dataclass

from quire.errors import StartupError
from quire.options.base import option
from quire.options.dual_batch import DualBatchOptions
from quire.options.executor import EXECUTOR_NAMES, ExecutorOptions
from quire.options.experts import ExpertOptions
from quire.options.nodes import NodeOptions
from quire.rpc.discovery import join_address

DATA_PARALLEL_RPC_PORT = 29550  # default port of the first node's router for ranks on several nodes


@dataclass(frozen=True)
class ParallelOptions:
    """Parallelism."""

    tensor_parallel_size: int = option(
        1, "Number of ranks that share each layer.", aliases=("-tp",), minimum=1, maximum=64, affects_output=True
    )
    pipeline_parallel_size: int = option(
        1, "Number of stages that a model's layers are divided into, each on ranks of its own; the same number of "
        "steps runs concurrently.",
        aliases=("-pp",), minimum=1, maximum=64,
    )  # fmt: skip
    decode_context_parallel_size: int = option(
        1, "Number of tensor-parallel ranks that share a sequence's cached tokens instead of each caching all of them: "
        "for models with fewer key-value heads than ranks, or with compressed attention. Must divide "
        "--tensor-parallel-size.", aliases=("-dcp",), minimum=1, maximum=64, affects_output=True,
    )  # fmt: skip
    pipeline_layer_partition: str | None = option(
        None, "Number of layers per stage, such as 10,12. Default: as even as possible; stages before the last, which "
        "has the output layer, get the remainder.", variables=("VLLM_PP_LAYER_PARTITION",), metavar="N,N...",
    )  # fmt: skip
    distributed_executor_backend: str | None = option(
        None, "How ranks run: uni (in this process, one rank), mp (one process each), ray (actors of a Ray cluster) or "
        "external_launcher (processes started by torchrun). auto, the default: uni for one rank; mp if the ranks fit "
        "on this machine's GPUs or run on its CPU; else ray.", choices=("auto", *EXECUTOR_NAMES),
    )  # fmt: skip
    data_parallel_size: int = option(
        1, "Number of data-parallel ranks on all nodes together: engine workers, each with its own requests, scheduler "
        "and cache. For a model without experts, they are full replicas; experts are spread across the ranks of all of "
        "them.",
        aliases=("-dp", "--engines"), variables=("VLLM_DP_SIZE",), minimum=1, maximum=1024,
    )  # fmt: skip
    data_parallel_rank: int | None = option(
        None, "Index of a worker among the data-parallel ranks, from 0. Under `quire serve`: runs only this rank, and "
        "an external load balancer balances among the APIs of all ranks.", aliases=("-dpn",),
        variables=("VLLM_DP_RANK",), minimum=0, maximum=1023,
    )  # fmt: skip
    data_parallel_address: str = option(
        "127.0.0.1", "Address of the first data-parallel node, as seen from all nodes.", aliases=("-dpa",),
        variables=("VLLM_DP_MASTER_IP",),
    )  # fmt: skip
    data_parallel_master_port: int = option(
        0, "Port at --data-parallel-address where the ranks of a model with experts connect to each other. Default "
        "under `quire serve`: --data-parallel-rpc-port + 1, or a free port if all ranks are on this machine; otherwise "
        "29551.",
        variables=("VLLM_DP_MASTER_PORT",), minimum=0, maximum=65535,
    )  # fmt: skip
    experts: ExpertOptions = ExpertOptions()
    dual_batch: DualBatchOptions = DualBatchOptions()
    executor: ExecutorOptions = ExecutorOptions()
    nodes: NodeOptions = NodeOptions()

    @property
    def num_ranks(self) -> int:
        """Number of ranks of one worker: one process each, and one GPU each if there are any."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def num_local_ranks(self) -> int:
        """Number of ranks that one worker has on each of its nodes."""
        return self.num_ranks // self.nodes.nnodes

    @property
    def data_parallel_meeting(self) -> str:
        """host:port at which the data-parallel ranks of a model with experts meet."""
        return join_address(self.data_parallel_address, self.data_parallel_master_port or DATA_PARALLEL_RPC_PORT + 1)

    def check_nodes(self) -> None:
        """Checks the options that go with --nnodes.

        Raises:
            StartupError: they contradict each other or the layout.
        """
        nnodes, node_rank, backend = self.nodes.nnodes, self.nodes.node_rank, self.distributed_executor_backend
        if node_rank >= nnodes:
            raise StartupError(f"--node-rank {node_rank} is not below --nnodes {nnodes}: nodes are counted from 0.")
        if nnodes == 1:
            return
        if self.num_ranks % nnodes:
            raise StartupError(
                f"--nnodes {nnodes} does not divide the {self.num_ranks} ranks of --tensor-parallel-size "
                f"{self.tensor_parallel_size} x --pipeline-parallel-size {self.pipeline_parallel_size}: each node has "
                "the same number of ranks."
            )
        if not self.nodes.master_addr:
            raise StartupError(f"--nnodes {nnodes} needs --master-addr: the address of node 0, as seen from all nodes.")
        if backend not in (None, "auto", "mp"):
            raise StartupError(f"--nnodes {nnodes} needs --distributed-executor-backend mp, not {backend}.")
        if self.data_parallel_size > 1:
            raise StartupError(
                f"--nnodes {nnodes} divides the ranks of one engine among nodes; --data-parallel-size "
                f"{self.data_parallel_size} has several engines, which nodes share by --data-parallel-size-local and "
                "--data-parallel-start-rank. Leave one of them out."
            )
