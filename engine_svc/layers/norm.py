"""Normalization layers: RMS norm and layer norm, whole, per head, or sharded over ranks."""

from __future__ import annotations

import math

import torch

from engine_svc.layers.context import LayerContext, PackedLayer
from engine_svc.layers.parameter import LoadedParameter, TensorSlice
from engine_svc.layers.split import Part
from engine_svc.ops.base import Affine, Ops


class RMSNorm(torch.nn.Module):
    """x / rms(x) * weight, over the last dimension."""

    def __init__(
        self, size: int, epsilon: float, *, context: LayerContext, offset: float = 0.0, factor: float = 1.0
    ) -> None:
        """
        Args:
            offset: added to the checkpoint's weight (Gemma stores weight - 1).
            factor: multiplied with the checkpoint's weight.
        """
        super().__init__()
        self._ops = context.ops
        self.epsilon = epsilon
        self.weight = _changed_weight(size, offset, factor, context)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None = None, output: torch.Tensor | None = None
    ) -> torch.Tensor:
        """[..., size] → [..., size]. With a residual, adds `hidden` to it in place and normalizes the sum.

        Args:
            output: receives the result; only without a residual. See Ops.rms_norm.
        """
        if residual is None:
            return self._ops.rms_norm(hidden, self.weight, self.epsilon, output)
        return self._ops.add_rms_norm(hidden, residual, self.weight, self.epsilon)


class DelayNorm(RMSNorm, PackedLayer):
    """RMSNorm whose result is scaled by a function of a delay (Voxtral Realtime).

    The delay is known when the model is loaded, so the scale becomes part of the weight.
    """

    _INNER_SIZE = 32

    def __init__(self, size: int, epsilon: float, delay: int, *, context: LayerContext) -> None:
        """
        Args:
            delay: in tokens.
        """
        super().__init__(size, epsilon, context=context)
        self._delay = delay
        self.inner = LoadedParameter((self._INNER_SIZE, size), context.dtype, context.device)
        self.outer = LoadedParameter((size, self._INNER_SIZE), context.dtype, context.device)

    def pack(self) -> None:
        """See PackedLayer.pack."""
        half = self.weight.shape[0] // 2
        places = torch.arange(half, dtype=torch.float32, device=self.weight.device)
        angles = self._delay * torch.exp(places * (-math.log(10_000.0) / half))
        inner = torch.nn.functional.gelu(self.inner.float() @ torch.cat([angles.cos(), angles.sin()]))
        self.weight.mul_(1 + self.outer.float() @ inner)
        del self.inner, self.outer


class LayerNorm(torch.nn.Module):
    """(x - mean) / deviation * weight + bias, over the last dimension. Called in the same way as RMSNorm."""

    def __init__(
        self, size: int, epsilon: float, *, context: LayerContext, offset: float = 0.0, bias: bool,
        has_weight: bool = True,
    ) -> None:  # fmt: skip
        """
        Args:
            offset: as for RMSNorm.
            has_weight: checkpoints have a weight; else it is 1.
        """
        super().__init__()
        self._ops = context.ops
        self._epsilon = epsilon
        self.weight = _changed_weight(size, offset, 1.0, context)
        self.weight.default = None if has_weight else 1.0
        self.bias = LoadedParameter((size,), context.dtype, context.device) if bias else None

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor | None = None, output: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See RMSNorm.forward."""
        affine = Affine(self.weight, self.bias)
        if residual is None:
            return self._ops.layer_norm(hidden, affine, self._epsilon, output)
        return self._ops.add_layer_norm(hidden, residual, affine, self._epsilon)


def _changed_weight(size: int, offset: float, factor: float, context: LayerContext) -> LoadedParameter:
    weight = LoadedParameter((size,), context.dtype, context.device)

    def load(source: TensorSlice, part: str) -> None:
        weight.write(part, weight, source, (slice(None),))
        weight.add_(offset).mul_(factor)

    weight.loader = load
    return weight


class HeadLayerNorm(torch.nn.Module):
    """A layer norm for each head, with per-head weights and no biases; every rank has a range of the heads."""

    def __init__(self, part: Part, head_dim: int, epsilon: float, *, context: LayerContext) -> None:
        """
        Args:
            part: this rank's features out of those of all heads.
        """
        super().__init__()
        self._ops = context.ops
        self._epsilon = epsilon
        self._heads = range(part.first // head_dim, (part.first + part.count) // head_dim)
        shape, shards = (len(self._heads), head_dim), [str(head) for head in self._heads]
        self.weight = LoadedParameter(shape, context.dtype, context.device, shards)
        self.weight.loader = self._load_weight

    def forward(self, hidden: torch.Tensor) -> None:
        """Normalizes [tokens, heads * head_dim], in place; any stride between tokens."""
        for head, weight in zip(hidden.split(self.weight.shape[1], dim=-1), self.weight, strict=True):
            self._ops.layer_norm(head, Affine(weight, None), self._epsilon, head)

    def _load_weight(self, source: TensorSlice, part: str) -> None:
        """Loads from a checkpoint tensor of one head, or of all."""
        for own, head in enumerate(self._heads):
            if part == str(head):
                self.weight.write(part, self.weight[own], source, (slice(None),))
            elif not part:
                self.weight.write(str(head), self.weight[own : own + 1], source, (slice(head, head + 1), slice(None)))


class ParallelRMSNorm(torch.nn.Module):
    """RMSNorm over features that are divided among ranks."""

    def __init__(self, part: Part, epsilon: float, *, context: LayerContext) -> None:
        super().__init__()
        self._ops = context.ops
        self._group = context.groups.tensor
        self._range = slice(part.first, part.first + part.count)
        self._total = part.count * self._group.world_size  # features that several ranks hold are counted repeatedly
        self._epsilon = epsilon
        self.weight = LoadedParameter((part.count,), context.dtype, context.device)
        self.weight.loader = self._load_weight

    def forward(self, hidden: torch.Tensor) -> None:
        """Normalizes [tokens, count], in place; any stride between tokens."""
        if self._group.world_size == 1:
            self._ops.rms_norm(hidden, self.weight, self._epsilon, hidden)
            return
        wide = hidden.float()
        square = self._group.all_reduce(wide.square().sum(-1, keepdim=True))
        hidden.copy_((wide * (square / self._total + self._epsilon).rsqrt()).to(hidden.dtype) * self.weight)

    def _load_weight(self, source: TensorSlice, part: str) -> None:
        self.weight.write(part, self.weight, source, (self._range,))


class NoNorm(torch.nn.Module):
    """Takes the place of a norm in layers that have none."""

    def __init__(self, ops: Ops) -> None:
        super().__init__()
        self._ops = ops

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Adds `hidden` to the residual in place, and returns it. Both [tokens, hidden_size]."""
        return self._ops.add(residual, hidden)
