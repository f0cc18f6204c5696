"""Attention whose output goes through a gate for each of its values (Qwen3-Next)."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ColumnParallelLinear, qkv_parts
from engine_svc.layers.split import Part
from engine_svc.models.attention import Attention, LayerCache, StepInputs
from engine_svc.models.config import ModelConfig


class GatedAttention(Attention):
    """The gates of a head are made beside its query, which stands before them."""

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, context, index)
        parts = qkv_parts(context.groups.tensor, config.num_heads, config.num_kv_heads, config.head_dim)
        query = parts["q"]
        parts["q"] = Part(2 * query.first, 2 * query.count, 2 * query.total)
        self.qkv_proj = ColumnParallelLinear(
            config.hidden_size, parts, bias=config.qkv_bias, context=context.at("qkv_proj")
        )

    def forward(self, hidden: torch.Tensor, cache: LayerCache, step: StepInputs) -> torch.Tensor:
        """See Attention.forward."""
        heads = self.qkv_proj(hidden).view(len(hidden), -1, self._head_dim)
        pairs, keys_and_values = heads.split((2 * self._heads, 2 * self._kv_heads), dim=1)
        query, gates = pairs.unflatten(1, (self._heads, 2)).unbind(2)
        together = self._ops.join((query, keys_and_values)).view(len(hidden), -1, self._head_dim)
        return self.o_proj(self._ops.gate(self._attend(together, cache, step), self._ops.join((gates,))))
