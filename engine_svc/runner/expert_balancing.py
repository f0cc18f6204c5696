"""Experts that move between ranks while serving, so that all ranks have about the same number of tokens to compute."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from engine_svc.layers.experts import Experts
from engine_svc.parallel.balance import balancedness, moves, rebalanced
from engine_svc.parallel.group import ParallelGroups
from engine_svc.parallel.placement import Placement
from quire.errors import StartupError
from quire.options.experts import EplbConfig

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Rearranged:
    """One layer's balancedness before and after its experts moved."""

    before: float  # balancedness
    after: float
    num_moves: int


class ExpertBalancing:
    """Counts tokens per expert, and moves experts between two passes.

    All ranks count the same passes, so they move at the same time; and all plan from the counts of the first rank, so
    they make the same plan.
    """

    def __init__(self, layers: Sequence[Experts], groups: ParallelGroups, config: EplbConfig) -> None:
        """
        Raises:
            StartupError: ranks hold the weights of their experts in different forms.
        """
        self._layers, self._groups, self._config = layers, groups, config
        self._passes = 0
        self._counts = [layer.count_tokens() for layer in layers]  # int64 [experts] each
        self._told = [counts.clone() for counts in self._counts]
        self._check_forms()

    def after_pass(self) -> None:
        """Called after each forward pass, empty ones included, on all ranks."""
        self._passes += 1
        left = -self._passes % self._config.step_interval
        if self._config.log_balancedness:
            self._log_pass()
        if left == 0:
            self._rearrange()
        if left in (0, self._config.window_size):  # tokens of later passes count for the next rearrangement
            for counts in (*self._counts, *self._told):
                counts.zero_()

    def _rearrange(self) -> None:
        started = time.monotonic()
        done = [
            _rearrange_layer(layer, loads)
            for layer, loads in zip(self._layers, self._loads_of(self._counts), strict=True)
        ]
        if self._groups.expert.rank == 0:
            logger.info(
                "after %d passes, %d experts of %d layers were moved in %.2f s: balancedness went from %.2f to %.2f",
                self._passes, sum(each.num_moves for each in done), sum(each.num_moves > 0 for each in done),
                time.monotonic() - started, _mean([each.before for each in done]), _mean([each.after for each in done]),
            )  # fmt: skip

    def _log_pass(self) -> None:
        loads = self._loads_of([counts - told for counts, told in zip(self._counts, self._told, strict=True)])
        for counts, told in zip(self._counts, self._told, strict=True):
            told.copy_(counts)
        if self._groups.expert.rank == 0:
            found = [balancedness(each, layer.placement) for each, layer in zip(loads, self._layers, strict=True)]
            logger.info("pass %d: %d choices per layer, balancedness %.2f", self._passes, sum(loads[0]), _mean(found))

    def _loads_of(self, counts: Sequence[torch.Tensor]) -> list[list[int]]:
        """Tokens of all data ranks, by layer and expert."""
        total = self._groups.data.all_reduce(torch.stack(list(counts)).double())
        found: list[list[int]] = self._groups.expert.broadcast(total).long().tolist()
        return found

    def _check_forms(self) -> None:
        """Raises unless all ranks hold experts in the same form: packing may depend on the weights' values."""
        found = "; ".join(layer.layout for layer in self._layers).encode()
        length = self._groups.expert.broadcast(torch.tensor([len(found)], device=self._counts[0].device))
        firsts = torch.zeros(int(length), dtype=torch.uint8, device=length.device)
        own = torch.tensor([*found], dtype=torch.uint8, device=length.device)
        if self._groups.expert.rank == 0:
            firsts.copy_(own)
        if not self._groups.expert.broadcast(firsts).equal(own):
            raise StartupError(
                "--enable-eplb: ranks hold this checkpoint's experts in different forms, so they cannot be moved. "
                "Leave it out."
            )


def make_balancing(
    layers: Sequence[Experts], groups: ParallelGroups, config: EplbConfig | None
) -> ExpertBalancing | None:
    """Returns None if experts never move: balancing is off, there are no experts, or there is only one rank."""
    if config is None:
        return None
    if not layers or groups.layout.expert == 1:
        logger.warning("--enable-eplb has no effect: there %s", "is only one rank" if layers else "are no experts")
        return None
    return ExpertBalancing(layers, groups, config)


def _rearrange_layer(layer: Experts, loads: Sequence[int]) -> _Rearranged:
    now = layer.placement
    wanted = rebalanced(loads, now)
    num_moves = _move(layer, now, wanted) if wanted != now else 0
    return _Rearranged(balancedness(loads, now), balancedness(loads, wanted), num_moves)


def _move(layer: Experts, now: Placement, wanted: Placement) -> int:
    planned = moves(now, wanted)
    layer.move(planned, wanted)
    return len(planned)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
