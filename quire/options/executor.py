"""Options of the executors: how the ranks of a worker are started, and what each of them runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.options.base import option

EXECUTOR_NAMES = ("uni", "mp", "ray", "external_launcher")


@dataclass(frozen=True)
class ExecutorOptions:
    """How ranks are started, and what they run."""

    group: ClassVar[str] = "ParallelConfig"

    max_parallel_loading_workers: int | None = option(
        None, "Ranks of a worker that read their weights at the same time, where reading takes host memory beside "
        "them. Default: all.", minimum=1, maximum=1024,
    )  # fmt: skip
    disable_custom_all_reduce: bool = option(
        False, "Ranks sum by NCCL alone, or Gloo on a CPU, and never through memory that they share: on GPUs that "
        "reach each other's, small tensors are summed by one kernel otherwise; on a CPU all are, by ours.",
        variables=("VLLM_DISABLE_CUSTOM_ALL_REDUCE",), affects_output=True,
    )  # fmt: skip
    worker_cls: str = option(
        "auto", "Class that runs the model on each rank, as package.module.Class: derived from "
        "engine_svc.runner.runner.Runner, see docs/scaling.md. auto: that one.", metavar="CLASS", affects_output=True,
    )  # fmt: skip
    worker_extension_cls: str = option(
        "", "Class put before that one, whose methods it may extend, as package.module.Class; see docs/scaling.md.",
        metavar="CLASS", affects_output=True,
    )  # fmt: skip
    host_ip: str | None = option(
        None, "Address of this machine at which ranks on others reach it. For what the processes of a worker say to "
        "each other, never for the API. Default: the one that leads to them.", variables=("VLLM_HOST_IP",),
    )  # fmt: skip
    rank_port: int = option(
        0, "Port where ranks that ray or external_launcher has started find their worker. Default: any for ray, and "
        "the one above MASTER_PORT for external_launcher.", variables=("VLLM_PORT",), minimum=0, maximum=65535,
    )  # fmt: skip
    rank_secret: str | None = option(
        None, "What all ranks that external_launcher has started must know to be let in.", secret=True
    )
    ray_per_worker_gpus: float = option(
        1.0, "GPUs that Ray counts for a rank, where there are any; a share lets others in beside it.",
        variables=("VLLM_RAY_PER_WORKER_GPUS",), minimum=0.01, maximum=1.0,
    )  # fmt: skip
    ray_bundle_indices: str = option(
        "", "Bundles of the placement group that this process is in already, one for each rank, such as 0,1,2,3.",
        metavar="N,N...", variables=("VLLM_RAY_BUNDLE_INDICES",),
    )  # fmt: skip
    ray_workers_use_nsight: bool = option(False, "Ray profiles each rank with Nsight Systems, which writes a report.")
