"""Chooses a worker's executor if the options do not name one."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from quire.errors import StartupError
from quire.options.parallel import ParallelOptions
from quire.serve.devices import count_gpus


def choose_executor(options: ParallelOptions, device: str, config: Mapping[str, Any] | None = None) -> str:
    """Returns the name of the executor. Ranks run on this machine if each can have its own GPU or computes on the CPU.

    Data-parallel ranks that share experts take part in each other's steps, even while their control sides are idle:
    that requires a separate process.

    Args:
        device: value of --device.
        config: the model's configuration, if it is already known.

    Raises:
        StartupError: the ranks do not fit on this machine, and Ray is not installed; or this is not the first node.
    """
    if options.nodes.node_rank:
        raise StartupError(
            f"--node-rank {options.nodes.node_rank} only has ranks for the engine of node 0: use `quire serve "
            "--headless` or `quire engine`."
        )
    named = options.distributed_executor_backend
    if named not in (None, "auto"):
        return str(named)
    if options.num_ranks == 1:
        is_dense = config is not None and not _mentions_experts(config)
        return "uni" if options.data_parallel_size == 1 or is_dense else "mp"
    gpus = 0 if device == "cpu" else count_gpus()
    if not gpus or options.num_local_ranks <= gpus:
        return "mp"
    if options.nodes.nnodes > 1:
        raise StartupError(
            f"Each of --nnodes {options.nodes.nnodes} needs {options.num_local_ranks} GPUs, but this machine has "
            f"{gpus}. Use more nodes, or set --device cpu."
        )
    if importlib.util.find_spec("ray") is not None:
        return "ray"
    raise StartupError(
        f"The model's {options.num_ranks} ranks need one GPU each, but this machine has {gpus}. Install quire[ray] "
        "and start a Ray cluster, lower --tensor-parallel-size or --pipeline-parallel-size, or set --device cpu."
    )


def _mentions_experts(config: Mapping[str, Any]) -> bool:
    """Whether the configuration, or a part of it, has a number of experts under any key that contains "expert"."""
    return any(
        _mentions_experts(value) if isinstance(value, dict) else "expert" in key and isinstance(value, int) and value
        for key, value in config.items()
    )
