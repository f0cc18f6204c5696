"""Grouped-query attention with rotary positions, as the decoder families have it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from engine_svc.attention.base import AttentionBackend, AttentionOptions, Prepared
from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ColumnParallelLinear, RowParallelLinear, qkv_parts
from engine_svc.layers.norm import ParallelRMSNorm, RMSNorm
from engine_svc.models.config import ModelConfig
from engine_svc.ops.base import HeadNorms


class LayerCache(NamedTuple):
    """What a layer attends to: both of the attention backend."""

    cache: torch.Tensor
    prepared: Prepared


@dataclass(frozen=True)
class StepInputs:
    """What the layers of one forward pass share."""

    rotary: torch.Tensor  # [tokens, 2, rotary_dim / 2]
    local_rotary: torch.Tensor  # the same for layers with a sliding window
    attention: AttentionBackend


class Attention(torch.nn.Module):
    """Projections, norms, rotation and the backend's attention."""

    def __init__(self, config: ModelConfig, context: LayerContext, sliding_window: int | None) -> None:
        super().__init__()
        self._ops = context.ops
        parts = qkv_parts(context.groups.tensor, config.num_heads, config.num_kv_heads, config.head_dim)
        self._heads = parts["q"].count // config.head_dim
        self._kv_heads = parts["k"].count // config.head_dim
        self._head_dim = config.head_dim
        self._options = AttentionOptions(config.attention_scale, sliding_window, config.attention_softcap)
        self.qkv_proj = ColumnParallelLinear(config.hidden_size, parts, bias=config.qkv_bias, context=context)
        self.o_proj = RowParallelLinear(
            config.num_heads * config.head_dim, config.hidden_size, bias=config.output_bias, context=context
        )
        self._head_norms: HeadNorms | None = None
        self._norms_all = config.qk_norm == "all"
        if config.qk_norm == "head":
            norms = [
                RMSNorm(config.head_dim, config.rms_norm_eps, context=context, offset=config.norm_offset)
                for _ in range(2)
            ]
            self.q_norm, self.k_norm = norms
            self._head_norms = HeadNorms(norms[0].weight, norms[1].weight, config.rms_norm_eps)
        elif self._norms_all:
            self.q_norm, self.k_norm = (
                ParallelRMSNorm(parts[name], config.rms_norm_eps, context=context) for name in ("q", "k")
            )

    def forward(self, hidden: torch.Tensor, cache: LayerCache, step: StepInputs) -> torch.Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size]."""
        tokens = hidden.shape[0]
        projected = self.qkv_proj(hidden)
        if self._norms_all:
            self._normalise(projected)
        heads = projected.view(tokens, -1, self._head_dim)
        query_key, value = heads.split((self._heads + self._kv_heads, self._kv_heads), dim=1)
        rotary = step.rotary if self._options.sliding_window is None else step.local_rotary
        rotated = self._ops.rotate(query_key, rotary, self._heads, self._head_norms)
        query, key = rotated.split((self._heads, self._kv_heads), dim=1)
        output = step.attention.forward(query, key, value, cache.cache, cache.prepared, self._options)
        return self.o_proj(output.reshape(tokens, -1))

    def _normalise(self, projected: torch.Tensor) -> None:
        """All query heads as one vector, and all key heads, in place."""
        sizes = (self._heads * self._head_dim, self._kv_heads * self._head_dim, self._kv_heads * self._head_dim)
        query, key, _ = projected.split(sizes, dim=-1)
        self.q_norm(query)
        self.k_norm(key)
