"""Options of the parallel layout."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option
from quire.options.dual_batch import DualBatchOptions
from quire.options.executor import EXECUTOR_NAMES, ExecutorOptions
from quire.options.experts import ExpertOptions
from quire.rpc.discovery import join_address

DATA_PARALLEL_RPC_PORT = 29550  # default port of the first node's router for ranks on several nodes


@dataclass(frozen=True)
class ParallelOptions:
    """The ranks of a worker."""

    tensor_parallel_size: int = option(
        1, "Ranks that share each layer.", aliases=("-tp",), minimum=1, maximum=64, affects_output=True
    )
    pipeline_parallel_size: int = option(
        1, "Stages of layers that a model is cut into, each on ranks of its own; as many steps run at once.",
        aliases=("-pp",), minimum=1, maximum=64,
    )  # fmt: skip
    decode_context_parallel_size: int = option(
        1, "Tensor-parallel ranks that share the cached tokens of a sequence, in place of caching all of them each: "
        "where a model has fewer key-value heads than ranks, or compressed attention. Divides "
        "--tensor-parallel-size.", aliases=("-dcp",), minimum=1, maximum=64, affects_output=True,
    )  # fmt: skip
    pipeline_layer_partition: str | None = option(
        None, "Layers of each stage, such as 10,12. Default: as even as it goes; what is over goes to stages before "
        "the last, which has the output layer.", variables=("VLLM_PP_LAYER_PARTITION",), metavar="N,N...",
    )  # fmt: skip
    distributed_executor_backend: str | None = option(
        None, "How ranks run: uni (in this process, one rank), mp (a process each), ray (actors of a Ray cluster) or "
        "external_launcher (processes that torchrun has started). auto, the default: uni for one rank, mp while they "
        "fit this machine's GPUs or run on its CPU, else ray.", choices=("auto", *EXECUTOR_NAMES),
    )  # fmt: skip
    data_parallel_size: int = option(
        1, "Data-parallel ranks, on all nodes together: engine workers, each with requests, scheduler and cache of its "
        "own. Those of a model without experts are replicas of the whole; experts are spread over the ranks of all.",
        aliases=("-dp", "--engines"), variables=("VLLM_DP_SIZE",), minimum=1, maximum=1024,
    )  # fmt: skip
    data_parallel_rank: int | None = option(
        None, "Number of a worker among them, from 0. Under `quire serve`: it runs this rank alone, and something "
        "outside balances between the APIs of all (external balancing).", aliases=("-dpn",),
        variables=("VLLM_DP_RANK",), minimum=0, maximum=1023,
    )  # fmt: skip
    data_parallel_address: str = option(
        "127.0.0.1", "Address of the first node of data-parallel ranks, as all nodes reach it.", aliases=("-dpa",),
        variables=("VLLM_DP_MASTER_IP",),
    )  # fmt: skip
    data_parallel_master_port: int = option(
        0, "Port of that address at which the ranks of a model with experts meet. Default: under `quire serve` the one "
        "above --data-parallel-rpc-port, or a free one where all ranks are on this machine; else 29551.",
        variables=("VLLM_DP_MASTER_PORT",), minimum=0, maximum=65535,
    )  # fmt: skip
    experts: ExpertOptions = ExpertOptions()
    dual_batch: DualBatchOptions = DualBatchOptions()
    executor: ExecutorOptions = ExecutorOptions()

    @property
    def num_ranks(self) -> int:
        """Number of ranks of one worker: one process each, and one GPU each if there are any."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def data_parallel_meeting(self) -> str:
        """host:port at which the data-parallel ranks of a model with experts meet."""
        return join_address(self.data_parallel_address, self.data_parallel_master_port or DATA_PARALLEL_RPC_PORT + 1)
