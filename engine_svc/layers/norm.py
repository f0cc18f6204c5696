"""Root mean square normalisation."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.parameter import LoadedParameter, TensorSlice
from engine_svc.layers.split import Part


class RMSNorm(torch.nn.Module):
    """x / rms(x) * weight, over the last dimension."""

    def __init__(self, size: int, epsilon: float, *, context: LayerContext, offset: float = 0.0) -> None:
        """
        Args:
            offset: is added to the checkpoint's weight (Gemma's is one too low).
        """
        super().__init__()
        self._offset = offset
        self._ops = context.ops
        self.epsilon = epsilon
        self.weight = LoadedParameter((size,), context.dtype, context.device)
        self.weight.loader = self._load_weight

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None = None, output: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[..., size] → [..., size]; a residual gets `hidden` added, in place, and is what is normalised.

        Args:
            output: where it goes, without a residual; see Ops.rms_norm.
        """
        if residual is None:
            return self._ops.rms_norm(hidden, self.weight, self.epsilon, output)
        return self._ops.add_rms_norm(hidden, residual, self.weight, self.epsilon)

    def _load_weight(self, source: TensorSlice, part: str) -> None:
        self.weight.write(part, self.weight, source, (slice(None),))
        self.weight.add_(self._offset)


class ParallelRMSNorm(torch.nn.Module):
    """The same over features of which every rank has a range."""

    def __init__(self, part: Part, epsilon: float, *, context: LayerContext) -> None:
        super().__init__()
        self._ops = context.ops
        self._group = context.groups.tensor
        self._range = slice(part.first, part.first + part.count)
        self._total = part.total
        self._epsilon = epsilon
        self.weight = LoadedParameter((part.count,), context.dtype, context.device)
        self.weight.loader = self._load_weight

    def forward(self, hidden: torch.Tensor) -> None:
        """Normalises [tokens, count], in place; any stride between tokens."""
        if self._group.world_size == 1:
            self._ops.rms_norm(hidden, self.weight, self._epsilon, hidden)
            return
        wide = hidden.float()
        square = self._group.all_reduce(wide.square().sum(-1, keepdim=True))
        hidden.copy_((wide * (square / self._total + self._epsilon).rsqrt()).to(hidden.dtype) * self.weight)

    def _load_weight(self, source: TensorSlice, part: str) -> None:
        self.weight.write(part, self.weight, source, (self._range,))
