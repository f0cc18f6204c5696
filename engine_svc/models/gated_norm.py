"""Norms whose outputs are multiplied by gates that depend on them (A.X K2)."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ReplicatedLinear
from engine_svc.models.config import ModelConfig
from engine_svc.models.decoder_layer import DecoderLayer, hidden_norm


class GatedNorm(torch.nn.Module):
    """A norm and a gate for each of its values, of low rank: y = norm(x); y * sigmoid(outer(silu(inner(y))))."""

    def __init__(self, config: ModelConfig, context: LayerContext) -> None:
        super().__init__()
        assert config.norm_gate_rank is not None
        self._ops, size, rank = context.ops, config.hidden_size, config.norm_gate_rank
        self.norm = hidden_norm(config, context)
        self.inner = ReplicatedLinear(size, rank, wide=False, context=context.at("inner"))
        self.outer = ReplicatedLinear(rank, size, wide=False, context=context.at("outer"))

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size]; adds `hidden` to the residual in place, and norms the sum."""
        normed: torch.Tensor = self.norm(hidden, residual)
        return self._ops.gate(normed, self.outer(self._ops.activate(self.inner(normed), "silu")))


class GatedNormLayer(DecoderLayer):
    """A layer with such norms before attention and before mixtures of experts; a dense part has one without gates."""

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, context, index)
        self.input_layernorm = GatedNorm(config, context.at("input_layernorm"))
        if config.moe[index]:
            self.post_attention_layernorm = GatedNorm(config, context.at("post_attention_layernorm"))
