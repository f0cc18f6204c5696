"""Determines a rank process's layout and its rank in it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from engine_svc.executor.messages import LoadModel
from engine_svc.loader.folder import weights_folder
from engine_svc.loader.model import has_experts
from engine_svc.parallel.layout import ParallelLayout, layout_of
from quire.errors import StartupError
from quire.options.engine import EngineOptions


@dataclass(frozen=True)
class RankPlace:
    """A rank in a layout, and the rendezvous address where it meets the others."""

    layout: ParallelLayout
    rank: int
    rendezvous: str


def place_of(command: LoadModel) -> RankPlace:
    """The place of a rank: in its worker only or, if it generates with experts, among all data-parallel ranks.

    Raises:
        StartupError: the model cannot be found or read, or the options do not allow sharing experts.
    """
    options = command.options.parallel
    layout, size = layout_of(options), options.data_parallel_size
    if (
        size == 1
        or command.pooled_tokens is not None
        or not has_experts(weights_folder(command.model, command.options.load), command.options)
    ):
        return RankPlace(layout, command.rank, command.rendezvous)
    data_rank = options.data_parallel_rank
    if data_rank is None:
        raise StartupError(
            "--data-parallel-rank is missing: set it to the number of this rank among those that share the experts."
        )
    _check_shared(command.options)
    wider = replace(layout, data=size, expert=layout.tensor * size if options.experts.enable_expert_parallel else 1)
    rank = data_rank * layout.num_ranks + command.rank
    return RankPlace(wider, rank, f"tcp://{options.data_parallel_meeting}")


def _check_shared(options: EngineOptions) -> None:
    """Checks that the options are compatible with data-parallel ranks that compute together.

    Raises:
        StartupError: one is not.
    """
    if options.upkeep.enable_sleep_mode:
        raise StartupError(
            "--enable-sleep-mode cannot be combined with --data-parallel-size for a model with experts: the other "
            "ranks need the experts of the one that sleeps. Leave one of them out."
        )
