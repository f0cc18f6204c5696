"""Attention of text to an encoder's output, as in encoder-decoder models (Vaswani et al. 2017).

The output's keys and values are cached at the places of the tokens that stand for it, at the beginning of a sequence.
"""

from __future__ import annotations

import torch

from engine_svc.attention.base import AttentionOptions
from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ColumnParallelLinear, RowParallelLinear, qkv_parts
from engine_svc.models.attention import CrossCache, StepInputs
from engine_svc.models.config import ModelConfig


class CrossAttention(torch.nn.Module):
    """Projections of text to queries, and of the encoder's output to keys and values; and the backend's attention."""

    def __init__(self, config: ModelConfig, context: LayerContext) -> None:
        super().__init__()
        size, self._head_dim = config.hidden_size, config.head_dim
        parts = qkv_parts(context.groups.tensor, config.num_heads, config.num_kv_heads, config.head_dim)
        self._heads, self._kv_heads = (parts[part].count // config.head_dim for part in ("q", "k"))
        self._options = AttentionOptions(config.attention_scale, bidirectional=True)

        def projection(name: str, part: str, bias: bool) -> ColumnParallelLinear:
            return ColumnParallelLinear(size, {"": parts[part]}, bias=bias, context=context.at(name))

        self.query = projection("query", "q", config.qkv_bias)
        self.key = projection("key", "k", config.qkv_bias and config.key_bias)
        self.value = projection("value", "v", config.qkv_bias)
        self.o_proj = RowParallelLinear(
            config.num_heads * config.head_dim, size, bias=config.output_bias, context=context.at("o_proj")
        )

    def forward(self, hidden: torch.Tensor, cache: CrossCache, step: StepInputs) -> torch.Tensor:
        """[text rows, hidden_size] → [text rows, hidden_size]; also caches what is new of the encoder's output."""
        query = self.query(hidden).view(len(hidden), self._heads, self._head_dim)
        nothing = query.new_empty((0, self._kv_heads, self._head_dim))
        key = value = nothing
        if step.encoded is not None:
            key, value = (each(step.encoded).view(-1, *nothing.shape[1:]) for each in (self.key, self.value))
        attended = step.attention.forward(query, key, value, cache.text.cache, cache.encoded, self._options)
        projected: torch.Tensor = self.o_proj(attended.flatten(1))
        return projected
