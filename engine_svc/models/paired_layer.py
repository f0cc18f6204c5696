"""Layers in pairs, with a mixture of experts beside each pair (LongCat Flash).

The mixture reads what the first layer's feed-forward part reads, and its output is added after the second layer. So it
could be computed while the second layer is.
"""

from __future__ import annotations

import torch

from engine_svc.layers.context import LayerContext
from engine_svc.models.attention import AnyLayerCache, StepInputs
from engine_svc.models.config import ModelConfig
from engine_svc.models.decoder_layer import DecoderLayer, LayerOutput
from engine_svc.models.moe import SparseMLP


class PairedLayer(DecoderLayer):
    """A layer with norms before attention and before feed-forward; the first one of its pair also has the mixture."""

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, context, index)
        moe = config.moe[index]
        self.shortcut = SparseMLP(config, moe, context.at("shortcut")) if moe else None

    def forward(
        self, hidden: torch.Tensor, residual: torch.Tensor, cache: AnyLayerCache, step: StepInputs
    ) -> LayerOutput:
        """See DecoderLayer.forward."""
        mixed = self._mix(self.input_layernorm(hidden, residual), cache, step)
        residual = step.outputs(self._ops, residual)
        normed = self.post_attention_layernorm(mixed, residual)
        if self.shortcut is not None:
            step.shortcut.output = self.shortcut(normed)
            return LayerOutput(self.mlp(normed), residual)
        assert step.shortcut.output is not None
        added = step.outputs(self._ops, step.shortcut.output)
        return LayerOutput(self._ops.add(self.mlp(normed), added), residual)
