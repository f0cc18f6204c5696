"""The kinds of decoder layers, by where their norms are (see ModelConfig.norm_placement) or what they lack."""

from __future__ import annotations

from engine_svc.layers.context import LayerContext
from engine_svc.models.altup import AltUpLayer
from engine_svc.models.config import ModelConfig
from engine_svc.models.decoder_layer import (
    CrossLayer,
    DecoderLayer,
    MixerLayer,
    ParallelLayer,
    ParallelNormsLayer,
    PostNormLayer,
    ResidualNormLayer,
    SandwichNormLayer,
    SumNormLayer,
)
from engine_svc.models.gated_norm import GatedNormLayer
from engine_svc.models.gemma4_layer import Gemma4Layer
from engine_svc.models.growing_sums import GrowingSumsLayer
from engine_svc.models.paired_layer import PairedLayer
from engine_svc.models.pruned_layer import PrunedLayer
from engine_svc.models.streams import StreamLayer

LAYERS: dict[str, type[DecoderLayer]] = {
    "before": DecoderLayer, "after": PostNormLayer, "around": SandwichNormLayer, "around, scaled": Gemma4Layer,
    "parallel": ParallelLayer, "parallel norms": ParallelNormsLayer, "alone": MixerLayer, "sums": SumNormLayer,
    "residual": ResidualNormLayer, "cross": CrossLayer, "streams": StreamLayer, "around, streams": AltUpLayer,
    "pairs": PairedLayer, "before, gated": GatedNormLayer, "around, growing": GrowingSumsLayer,
}  # fmt: skip


def create_layer(config: ModelConfig, context: LayerContext, index: int) -> DecoderLayer:
    """Creates the layer with this index."""
    if index in config.pruned:
        return PrunedLayer(config, context, index)
    placement = config.recurrent_norm_placement if index in config.recurrent else None
    return LAYERS[placement or config.norm_placement](config, context, index)
