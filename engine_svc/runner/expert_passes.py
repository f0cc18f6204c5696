"""What the ranks that share a model's experts do around each forward pass."""

from __future__ import annotations

import torch

from engine_svc.models.moe import experts_of
from engine_svc.parallel.group import ParallelGroups
from engine_svc.runner.expert_balancing import make_balancing
from quire.options.experts import EplbConfig


class ExpertPasses:
    """Keeps passes in step with other ranks and balances experts. Does nothing without experts or on a single rank."""

    def __init__(self, model: object, groups: ParallelGroups, balancing: EplbConfig | None) -> None:
        """
        Args:
            balancing: how experts move between ranks; None means that they stay.

        Raises:
            StartupError: see ExpertBalancing.
        """
        self._experts = experts_of(model)
        self._lockstep, self._dual_batch = groups.lockstep, groups.dual_batch
        self._balancing = make_balancing(self._experts, groups, balancing)

    @property
    def why_not_recorded(self) -> str:
        """Why passes cannot be recorded and replayed; empty if they can."""
        if self._lockstep is not None:
            return "the number of tokens that other data ranks send is only known in each step"
        return "padding rows would count as tokens of experts" if self._balancing is not None else ""

    def begin(self, num_tokens: int, *, cuts: bool = False) -> bool:
        """Waits until the next pass is one of this rank, with `num_tokens` tokens.

        Args:
            cuts: whether this rank wants its pass to run as two halves.

        Returns:
            Whether the pass runs as two halves, as agreed by all data ranks.
        """
        if self._lockstep is None:
            return cuts
        self._lockstep.take_turn(num_tokens, self.run_empty, cuts=cuts)
        return self._lockstep.is_cut

    def end(self) -> None:
        """Must be called after each pass."""
        if self._balancing is not None:
            self._balancing.after_pass()

    @torch.inference_mode()
    def run_empty(self) -> None:
        """Takes part in a pass of other data ranks, without tokens of this rank's own."""
        if self._lockstep is not None and self._lockstep.is_cut:
            self._dual_batch.run(self._help_others, self._help_others)
        else:
            self._help_others()
        self.end()

    def _help_others(self) -> None:
        for layer in self._experts:
            layer.help_others()
