"""Layers that were trained to predict one token further (DeepSeek V3): draft heads in a model's own checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine_svc.attention.base import AttentionBackend
from engine_svc.layers.context import LayerContext
from engine_svc.layers.linear import ReplicatedLinear
from engine_svc.models.attention import AnyLayerCache
from engine_svc.models.decoder import Decoder
from engine_svc.models.decoder_layer import hidden_norm
from engine_svc.models.heads import FeatureHead, HeadForm, beside
from engine_svc.models.layer_kinds import create_layer


class MultiTokenHead(FeatureHead):
    """Joins the normalized embedding and features, projects them, and runs one layer, or more of which one attends."""

    def __init__(
        self, form: HeadForm, context: LayerContext, attention: AttentionBackend, target: Decoder, longest: int
    ) -> None:
        super().__init__(form, context, attention, target, longest)
        config, size, names = form.config, form.config.hidden_size, form.names
        self._features_first, self._passes_normalized = form.features_first, form.passes_normalized
        self.embedding_norm, self.hidden_norm = hidden_norm(config, context), hidden_norm(config, context)
        self.projection = ReplicatedLinear(2 * size, size, wide=False, context=context.at(names["projection"]))
        # Under their names in the checkpoint, by which their quantization is found.
        self.layers = torch.nn.ModuleList(
            [create_layer(config, context.at(names[f"layers.{index}"]), index) for index in range(config.num_layers)]
        )
        self._attends = [config.attends(index) for index in range(config.num_layers)]
        if "output_norm" in names:
            self.output_norm = hidden_norm(config, context)
            self._norm = self.output_norm.forward
        else:
            self._norm = target.norm.forward

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, caches: Sequence[AnyLayerCache],
        features: torch.Tensor | None,
    ) -> torch.Tensor:  # fmt: skip
        """See DraftModel.forward."""
        assert features is not None
        pair = self.embedding_norm(self._embed(token_ids)), self.hidden_norm(features)
        hidden = self.projection(beside(self._ops, *(reversed(pair) if self._features_first else pair)))
        step, residual, (cache,) = self._step(positions), self._ops.zeros_like(hidden), caches
        for layer, attends in zip(self.layers, self._attends, strict=True):
            hidden, residual = layer(hidden, residual, cache if attends else None, step)
        if self._passes_normalized:
            normalized: torch.Tensor = self._norm(hidden, residual)
            return normalized
        return self._ops.add(residual, hidden)

    def _normalised(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden if self._passes_normalized else self._norm(hidden)
