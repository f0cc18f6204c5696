"""Layers whose residual sums grow, after each of which Beam would shrink both of what it adds (Reflection AI 2026).

Its n-th sum is (x + sqrt(n - 1) * the sum before) / sqrt(n). Here sums are sqrt(n) times as large, and plain. Norms
undo this factor if their epsilon has its square.
"""

from __future__ import annotations

import dataclasses

from engine_svc.layers.context import LayerContext
from engine_svc.layers.norm import LayerNorm, RMSNorm
from engine_svc.models.config import ModelConfig
from engine_svc.models.decoder_layer import SandwichNormLayer, hidden_norm


def growth(layers: int) -> int:
    """The square of the factor on sums after this many layers, each of which has added twice to the embedding."""
    return 1 + 2 * layers


def norm_of_sums(config: ModelConfig, context: LayerContext, square: int) -> RMSNorm | LayerNorm:
    """Creates a norm of sums that are too large by the root of `square`."""
    return hidden_norm(dataclasses.replace(config, norm_eps=config.norm_eps * square), context)


class GrowingSumsLayer(SandwichNormLayer):
    """Norms before and after attention and feed-forward; their outputs are added to sums that are too large."""

    def __init__(self, config: ModelConfig, context: LayerContext, index: int) -> None:
        super().__init__(config, context, index)
        self.input_layernorm = norm_of_sums(config, context, growth(index))
        self.pre_feedforward_layernorm = norm_of_sums(config, context, growth(index) + 1)
