"""The heads of each layer's attention."""

from __future__ import annotations

from engine_svc.models.config import LayerHeads, ModelConfig, heads_within


def layer_heads(config: ModelConfig, layer: int) -> LayerHeads:
    """The heads of a layer."""
    return config.own_heads.get(layer) or heads_within(config, config.sliding_windows[layer])


def kinds_of_heads(config: ModelConfig) -> list[LayerHeads]:
    """The different heads of the model's layers, beginning with those of layers that have none of their own."""
    layers = (layer_heads(config, layer) for layer in range(config.num_layers) if config.attends(layer))
    return list(dict.fromkeys((heads_within(config, None), *layers)))


def has_one_kind_of_cache(config: ModelConfig) -> bool:
    """Whether each layer that attends caches its own keys and values, in the same form as all others."""
    return not config.borrowed and len(kinds_of_heads(config)) == 1
