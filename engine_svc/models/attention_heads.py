"""The heads of each layer's attention, and how their keys and values are cached."""

from __future__ import annotations

from typing import NamedTuple

from engine_svc.models.config import LayerHeads, ModelConfig, heads_within


class LayerKind(NamedTuple):
    """What layers must have in common to cache their keys and values in the same form."""

    heads: LayerHeads
    keeps_dtype: bool  # whether they cache in the model's dtype, whatever --kv-cache-dtype says


def layer_heads(config: ModelConfig, layer: int) -> LayerHeads:
    """The heads of a layer."""
    return config.own_heads.get(layer) or heads_within(config, config.sliding_windows[layer])


def layer_kind(config: ModelConfig, layer: int) -> LayerKind:
    """The kind of a layer. One that borrows another's keys and values reads them as that one caches them."""
    return LayerKind(layer_heads(config, layer), config.borrowed.get(layer, layer) in config.dtype_keeping_layers)


def kinds_of_layers(config: ModelConfig) -> list[LayerKind]:
    """The different kinds of the model's layers, beginning with that of layers that have nothing of their own."""
    layers = (layer_kind(config, layer) for layer in range(config.num_layers) if config.attends(layer))
    return list(dict.fromkeys((LayerKind(heads_within(config, None), keeps_dtype=False), *layers)))


def has_one_kind_of_cache(config: ModelConfig) -> bool:
    """Whether each layer that attends caches its own keys and values, in the same form as all others."""
    return not config.borrowed and len(kinds_of_layers(config)) == 1
