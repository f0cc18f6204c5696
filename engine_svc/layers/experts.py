"""The experts of a mixture: every rank holds a range of each one's features."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext, PackedLayer
from engine_svc.layers.split import Part, Split, hold, take_all
from engine_svc.ops.base import ExpertsProduct


class Experts(PackedLayer):
    """SwiGLU feed-forward layers, of which each token goes through a few."""

    def __init__(self, num_experts: int, hidden_size: int, size: int, *, context: LayerContext) -> None:
        """
        Args:
            size: features inside one expert.
        """
        super().__init__()
        self._context = context
        self._product: ExpertsProduct | None = None
        group = context.groups.expert
        share = group.divide(size, "features of an expert")
        mine, whole = Part(group.rank * share, share, size), Part(0, hidden_size, hidden_size)
        splits = {"gate_up": Split({"gate": mine, "up": mine}, whole), "down": Split({"down": whole}, mine)}
        self._held = {}
        for name, split in splits.items():
            self.add_module(name, module := torch.nn.Module())
            self._held[name] = hold(self, module, split, "experts", context, num_experts)

    def pack(self) -> None:
        """See PackedLayer.pack.

        Raises:
            ValueError: an expert's gate and up matrices have different forms.
        """
        gate_up, down = (take_all(self._held[name]) for name in ("gate_up", "down"))
        if len(gate_up) > 1:
            raise ValueError("the experts' gate and up matrices have different forms, which is not supported")
        self._product = self._context.ops.experts(gate_up[0], down[0])
        del self._held

    def forward(self, hidden: torch.Tensor, weights: torch.Tensor, expert_ids: torch.Tensor) -> torch.Tensor:
        """The chosen experts' weighted sum, the same on every rank.

        Args:
            hidden: [tokens, hidden_size]
            weights: float32 [tokens, chosen]
            expert_ids: int64 [tokens, chosen]
        """
        assert self._product is not None
        return self._context.groups.expert.all_reduce(self._product(hidden, weights, expert_ids))
