"""The experts of a mixture: every rank holds a range of each one's features."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext, PackedLayer
from engine_svc.layers.parameter import LoadedParameter, TensorSlice
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
        self._share = context.group.divide(size, "features of an expert")
        self._product: ExpertsProduct | None = None
        each = range(num_experts)
        self.gate_up = LoadedParameter(
            (num_experts, 2 * self._share, hidden_size), context.dtype, context.device,
            [f"{index}.{part}" for index in each for part in ("gate", "up")],
        )  # fmt: skip
        self.gate_up.load = self._load_gate_up
        self.down = LoadedParameter(
            (num_experts, hidden_size, self._share), context.dtype, context.device, [f"{index}.down" for index in each]
        )
        self.down.load = self._load_down

    def pack(self) -> None:
        """See PackedLayer.pack."""
        self._product = self._context.experts(self.gate_up, self.down)
        del self.gate_up, self.down

    def forward(self, hidden: torch.Tensor, weights: torch.Tensor, expert_ids: torch.Tensor) -> torch.Tensor:
        """The chosen experts' weighted sum, the same on every rank.

        Args:
            hidden: [tokens, hidden_size]
            weights: float32 [tokens, chosen]
            expert_ids: int64 [tokens, chosen]
        """
        assert self._product is not None
        return self._context.group.all_reduce(self._product(hidden, weights, expert_ids))

    def _mine(self) -> slice:
        start = self._context.group.rank * self._share
        return slice(start, start + self._share)

    def _load_gate_up(self, source: TensorSlice, part: str) -> None:
        index, _, name = part.partition(".")
        start = {"gate": 0, "up": self._share}[name]
        target = self.gate_up[int(index), start : start + self._share]
        self.gate_up.write(part, target, source, (self._mine(), slice(None)))

    def _load_down(self, source: TensorSlice, part: str) -> None:
        self.down.write(part, self.down[int(part.partition(".")[0])], source, (slice(None), self._mine()))
