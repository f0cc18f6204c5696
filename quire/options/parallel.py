"""Options of the parallel layout."""

from __future__ import annotations

from dataclasses import dataclass

from quire.options.base import option

EXECUTOR_NAMES = ("uni", "mp")
_REFUSED_EXECUTORS = {
    "auto": "Leave the option out: that is its default.",
    "ray": "Ray is not built yet: the ranks of a worker run on one machine, by mp.",
    "external_launcher": "Ranks that others start are not built yet: take mp.",
}


@dataclass(frozen=True)
class ParallelOptions:
    """The ranks of a worker."""

    tensor_parallel_size: int = option(
        1, "Ranks that share each layer.", aliases=("-tp",), minimum=1, maximum=64, affects_output=True
    )
    distributed_executor_backend: str | None = option(
        None, "How ranks run: uni (in this process, one rank) or mp (a process each). Default: uni for one rank, else "
        "mp.", choices=EXECUTOR_NAMES, refused=_REFUSED_EXECUTORS,
    )  # fmt: skip
