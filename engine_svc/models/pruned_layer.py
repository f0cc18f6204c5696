"""A layer of a model that was pruned, in which not all parts are left."""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import whole_linear
from engine_svc.models.attention import AnyLayerCache, StepInputs
from engine_svc.models.config import ModelConfig
from engine_svc.models.decoder_layer import DecoderLayer, LayerOutput, hidden_norm


class Replacement(torch.nn.Module):
    """A matrix in place of attention or feed-forward; every rank holds it whole."""

    def __init__(self, hidden_size: int, *, bias: bool, context: LayerContext) -> None:
        super().__init__()
        self.linear = whole_linear(hidden_size, hidden_size, bias=bias, context=context.at("linear"))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """[tokens, hidden_size] → [tokens, hidden_size]."""
        put_out: torch.Tensor = self.linear(hidden)
        return put_out


class PrunedLayer(DecoderLayer):
    """Attention, feed-forward, or a matrix in place of either, each after its norm; or none of it (Llama Nemotron)."""

    norms = ()  # of what is left

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, context, index)
        left, size = config.pruned[index], config.hidden_size
        self._left = left
        if left.attention == "matrix":
            self.self_attn = Replacement(size, bias=config.output_bias, context=context.at("self_attn"))
        if left.feed_forward == "matrix":
            self.mlp = Replacement(size, bias=config.mlp_bias, context=context.at("mlp"))
        if left.attention != "none":
            self.input_layernorm = hidden_norm(config, context)
        if left.feed_forward != "none":
            self.post_attention_layernorm = hidden_norm(config, context)

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> LayerOutput:
        """See DecoderLayer.forward."""
        if self._left.attention == "whole":
            hidden = self._mix(self.input_layernorm(hidden, residual), cache, step)
        else:
            hidden = step.outputs(self._ops, hidden)
        residual = step.outputs(self._ops, residual)
        if self._left.attention == "matrix":
            hidden = self.self_attn(self.input_layernorm(hidden, residual))
        if self._left.feed_forward != "none":
            hidden = self.mlp(self.post_attention_layernorm(hidden, residual))
        return LayerOutput(hidden, residual)
