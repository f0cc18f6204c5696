"""Options of the parallel layout."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option

EXECUTOR_NAMES = ("uni", "mp")


@dataclass(frozen=True)
class ParallelOptions:
    """The ranks of a worker."""

    tensor_parallel_size: int = option(
        1, "Ranks that share each layer.", aliases=("-tp",), minimum=1, maximum=64, affects_output=True
    )
    distributed_executor_backend: str | None = option(
        None, "How ranks run: uni (in this process, one rank) or mp (a process each).", choices=EXECUTOR_NAMES
    )
