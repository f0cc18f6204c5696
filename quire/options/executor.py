"""Options of the executors: how the ranks of a worker are started, and what each of them runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quire.options.base import option

EXECUTOR_NAMES = ("uni", "mp", "ray", "external_launcher")


@dataclass(frozen=True)
class ExecutorOptions:
    """Executors: how ranks are started, and what they run."""

    group: ClassVar[str] = "ParallelConfig"

    max_parallel_loading_workers: int | None = option(
        None, "Maximum number of ranks of a worker that load their weights at the same time, if loading takes "
        "additional host memory. Default: all.", minimum=1, maximum=1024,
    )  # fmt: skip
    disable_custom_all_reduce: bool = option(
        False, "Sums across ranks only with NCCL (Gloo on a CPU), never through shared memory. Otherwise, GPUs that "
        "can access each other's memory sum small tensors with a single kernel, and CPU ranks sum all tensors with "
        "Quire's own kernels.",
        variables=("VLLM_DISABLE_CUSTOM_ALL_REDUCE",), affects_output=True,
    )  # fmt: skip
    worker_cls: str = option(
        "auto", "Class that runs the model on each rank, as package.module.Class, derived from "
        "engine_svc.runner.runner.Runner; see docs/scaling.md. auto: that class itself.",
        metavar="CLASS", affects_output=True,
    )  # fmt: skip
    worker_extension_cls: str = option(
        "", "Mix-in class placed before --worker-cls to extend its methods, as package.module.Class; see "
        "docs/scaling.md.",
        metavar="CLASS", affects_output=True,
    )  # fmt: skip
    host_ip: str | None = option(
        None, "Address at which ranks on other machines reach this one. Only for communication within a worker, never "
        "for the API. Default: the address of the interface that leads to them.", variables=("VLLM_HOST_IP",),
    )  # fmt: skip
    rank_port: int = option(
        0, "Port at which ranks started by ray or external_launcher find their worker. Default: any free port for ray, "
        "MASTER_PORT + 1 for external_launcher.", variables=("VLLM_PORT",), minimum=0, maximum=65535,
    )  # fmt: skip
    rank_secret: str | None = option(
        None, "Secret that all ranks started by external_launcher must present, and those of all --nnodes. Required "
        "only for external_launcher.", secret=True,
    )  # fmt: skip
    ray_per_worker_gpus: float = option(
        1.0, "Number of GPUs that Ray reserves per rank, if there are any; a fraction leaves room for others.",
        variables=("VLLM_RAY_PER_WORKER_GPUS",), minimum=0.01, maximum=1.0,
    )  # fmt: skip
    ray_bundle_indices: str = option(
        "", "Bundles of the placement group that this process is already in, one per rank, such as 0,1,2,3.",
        metavar="N,N...", variables=("VLLM_RAY_BUNDLE_INDICES",),
    )  # fmt: skip
    ray_workers_use_nsight: bool = option(
        False, "Profiles each rank under Ray with Nsight Systems, which writes a report."
    )
