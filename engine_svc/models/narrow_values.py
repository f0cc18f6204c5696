"""Attention whose values are narrower than its keys (MiMo V2)."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.models.attention import Attention, LayerCache, StepInputs
from engine_svc.models.config import ModelConfig


class NarrowValueAttention(Attention):
    """Caches values with zeros behind them, so that they are as wide as keys, as backends expect.

    Where values have 128 of a key's 192 (MiMo V2), the cache is a fifth larger than it would have to be.
    """

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, context, index)
        assert config.value_dim is not None
        self._value_dim, self._value_scale = config.value_dim, config.value_scale
        size = self._head_dim - config.value_dim
        self._blank = torch.zeros((1, 1, size), dtype=context.dtype, device=context.device)

    def attend_projected(self, projected: torch.Tensor, cache: LayerCache, step: StepInputs) -> torch.Tensor:
        """Output of qkv_proj, which is changed in place → [outputs, query heads * value_dim]."""
        count, keys = len(projected), (self._heads + self._kv_heads) * self._head_dim
        together = self._rotation(step)(projected[:, :keys].unflatten(1, (-1, self._head_dim)))
        query, key = together.split((self._heads, self._kv_heads), dim=1)
        value = self._ops.scale(projected[:, keys:], self._value_scale).unflatten(1, (-1, self._value_dim))
        blank = self._blank.expand(count, 1, -1)
        padded = self._ops.join([part for own in value.split(1, dim=1) for part in (own, blank)])
        where = cache.cache, cache.prepared, self.options
        attended = step.attention.forward(step.outputs(self._ops, query), key, padded.view(key.shape), *where)
        return self._ops.join([attended[..., : self._value_dim]])
