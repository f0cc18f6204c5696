"""Attention of Gemma 4: values are normalized too, and some layers do not project values, or keys either."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.models.attention import Attention, LayerCache, StepInputs
from engine_svc.models.config import ModelConfig
from engine_svc.ops.base import HeadNorms


class Gemma4Attention(Attention):
    """Attention with a norm of values, without weights. Layers that borrow keys and values project queries only."""

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, context, index)
        ones = torch.ones(self._head_dim, dtype=context.dtype, device=context.device)
        self._value_norm = HeadNorms(ones, ones, config.norm_eps)

    def _projections(self, config: ModelConfig, index: int) -> str:
        """See Attention."""
        if index in config.borrowed:
            return "q"
        return "qk" if config.keys_are_values and config.sliding_windows[index] is None else "qkv"

    def _attend(self, heads: torch.Tensor, cache: LayerCache, step: StepInputs) -> torch.Tensor:
        """The projected heads [tokens, all heads, head_dim] → [outputs, query heads * head_dim]."""
        keys = self._heads + self._kv_heads
        together, value = heads[:, :keys], heads[:, keys:]
        if self._projected == "q":
            value = heads[:0, :0].view(0, self._kv_heads, self._head_dim)
        elif self._projected == "qk":  # a copy, because the keys may be changed in place
            value = self._ops.join([heads[:, self._heads :]]).view(len(heads), self._kv_heads, self._head_dim)
        if len(value):
            value = self._ops.rotate(value, step.rotary[..., :0], self._kv_heads, self._value_norm)
        together = self._rotation(step)(together)
        query, key = together[:, : self._heads], together[: len(value), self._heads :]
        key = key.view(0, self._kv_heads, self._head_dim) if self._projected == "q" else key
        where = cache.cache, cache.prepared, self.options
        return step.attention.forward(step.outputs(self._ops, query), key, value, *where).flatten(1)
