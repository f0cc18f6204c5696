"""Attention with gates on its output: for each value (Qwen3-Next, AFMoE, Laguna), or for each head (LFM3, Laguna)."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ColumnParallelLinear, even_parts, qkv_parts
from engine_svc.layers.parameter import TensorSlice
from engine_svc.layers.split import Part
from engine_svc.models.attention import Attention, LayerCache, StepInputs
from engine_svc.models.attention_heads import layer_heads
from engine_svc.models.config import ModelConfig


class GatedAttention(Attention):
    """Attention with a gate for each value; the query projection also produces each head's gates, after its query."""

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
        needed = step.outputs(self._ops, self._ops.join((gates,)))
        return self.o_proj(self._ops.gate(self._attend(together, cache, step), needed))


class HeadGatedAttention(Attention):
    """Attention with a gate for each head, produced by a separate projection."""

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, context, index)
        heads = even_parts(context.groups.tensor, {"": layer_heads(config, index).queries})
        self.g_proj = ColumnParallelLinear(config.hidden_size, heads, bias=False, context=context.at("g_proj"))

    def forward(self, hidden: torch.Tensor, cache: LayerCache, step: StepInputs) -> torch.Tensor:
        """See Attention.forward."""
        values = self._attended(hidden, cache, step)
        gates = self.g_proj(step.outputs(self._ops, hidden), wide=True).view(-1, 1)
        gated = self._ops.zeros_like(values)
        self._ops.add(gated.view(-1, self._head_dim), values.view(-1, self._head_dim), gates)
        return self.o_proj(gated)


class ValueGatedAttention(Attention):
    """Attention with a gate for each value, produced by a separate projection."""

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, context, index)
        gates = even_parts(context.groups.tensor, {"": config.num_heads * config.head_dim})
        has_biases = config.attention_gates == "values, head biases"
        self.g_proj = ColumnParallelLinear(config.hidden_size, gates, bias=has_biases, context=context.at("g_proj"))
        if self.g_proj.bias is not None:
            self.g_proj.bias.loader = self._load_biases

    def forward(self, hidden: torch.Tensor, cache: LayerCache, step: StepInputs) -> torch.Tensor:
        """See Attention.forward."""
        gates = self.g_proj(step.outputs(self._ops, hidden))
        return self.o_proj(self._ops.gate(self._attended(hidden, cache, step), gates))

    def _load_biases(self, source: TensorSlice, part: str) -> None:
        """Loads the biases of the rank's heads, each of which is that of all its values."""
        bias, own = self.g_proj.bias, slice(self._first_head, self._first_head + self._heads)
        assert bias is not None
        for values in bias.view(self._heads, self._head_dim).unbind(1):
            bias.write(part, values, source, (own,))


class SoftplusGatedAttention(Attention):
    """Attention with a gate for each head or value, produced by a separate projection, whose softplus is a factor."""

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, context, index)
        heads = layer_heads(config, index)
        each = 1 if config.attention_gates == "heads, softplus" else heads.size
        gates = even_parts(context.groups.tensor, {"": heads.queries * each})
        self.g_proj = ColumnParallelLinear(config.hidden_size, gates, bias=False, context=context.at("g_proj"))

    def forward(self, hidden: torch.Tensor, cache: LayerCache, step: StepInputs) -> torch.Tensor:
        """See Attention.forward."""
        values = self._attended(hidden, cache, step).unflatten(1, (self._heads, self._head_dim))
        gates = F.softplus(self.g_proj(step.outputs(self._ops, hidden), wide=True)).unflatten(1, (self._heads, -1))
        return self.o_proj((values * gates.to(values.dtype)).flatten(1))
