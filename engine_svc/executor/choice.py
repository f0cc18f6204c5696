"""Which executor a worker has, where its options leave that open."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

from quire.errors import StartupError
from quire.options.parallel import ParallelOptions
from quire.serve.devices import count_gpus


def choose_executor(options: ParallelOptions, device: str, config: Mapping[str, Any] | None = None) -> str:
    """Its name. Ranks stay on this machine as long as each can have a GPU of its own, or computes on the CPU.

    Data ranks that share experts take part in each other's steps, also while their control sides are idle: that is a
    process's task.

    Args:
        device: as --device has it.
        config: of the model, where it is known already.

    Raises:
        StartupError: the ranks do not fit, and there is nothing here to spread them with.
    """
    named = options.distributed_executor_backend
    if named not in (None, "auto"):
        return str(named)
    if options.num_ranks == 1:
        is_dense = config is not None and not _mentions_experts(config)
        return "uni" if options.data_parallel_size == 1 or is_dense else "mp"
    gpus = 0 if device == "cpu" else count_gpus()
    if not gpus or options.num_ranks <= gpus:
        return "mp"
    if importlib.util.find_spec("ray") is not None:
        return "ray"
    raise StartupError(
        f"The model's {options.num_ranks} ranks need a GPU each, and this machine has {gpus}. Install quire[ray] and "
        "start a Ray cluster, lower --tensor-parallel-size or --pipeline-parallel-size, or set --device cpu."
    )


def _mentions_experts(config: Mapping[str, Any]) -> bool:
    """Whether there is a number of experts in it, or in a part of it. Which of them the model has, its family knows."""
    return any(
        _mentions_experts(value) if isinstance(value, dict) else "expert" in key and isinstance(value, int) and value
        for key, value in config.items()
    )
