"""OLMo Hybrid (Ai2 2025): gated delta nets with norms before them, and attention layers with norms after them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config
from engine_svc.models.recurrent_config import DeltaNetConfig

_NAMES = {"attention_layer_norm": "input_layernorm", "feedforward_layer_norm": "post_attention_layernorm"}
_NORM_EPSILON = 1e-5  # of delta nets' outputs, regardless of the configuration


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Every fourth layer attends, unless layer types say otherwise. Without a rotary base, nothing is rotated."""
    layers, bias = range(config["num_hidden_layers"]), bool(config.get("attention_bias"))
    types = config.get("layer_types") or [
        "full_attention" if index % 4 == 3 else "linear_attention" for index in layers
    ]
    rotates = (config.get("rope_parameters") or config).get("rope_theta") is not None
    delta_net = _delta_net(config)
    return base_config(
        config if rotates else {**config, "rope_parameters": None, "rope_theta": 10000.0},
        norm_placement="after", recurrent_norm_placement="before", qk_norm="all", qkv_bias=bias, output_bias=bias,
        recurrent={index: delta_net for index in layers if types[index] == "linear_attention"},
        no_rope_layers=frozenset() if rotates else frozenset(layers), module_names=_NAMES, ignored_names=("mtp.",),
    )  # fmt: skip


def _delta_net(config: Mapping[str, Any]) -> DeltaNetConfig:
    key_heads = config.get("linear_num_key_heads") or config["num_attention_heads"]
    key_dim = config.get("linear_key_head_dim") or int(0.75 * config["hidden_size"] / key_heads)
    return DeltaNetConfig(
        key_heads=key_heads, value_heads=config.get("linear_num_value_heads") or config["num_attention_heads"],
        key_dim=key_dim, value_dim=config.get("linear_value_head_dim") or 2 * key_dim,
        taps=config.get("linear_conv_kernel_dim", 4), norm_epsilon=_NORM_EPSILON, form="apart",
        strongest=2.0 if config.get("linear_allow_neg_eigval", True) else 1.0,
    )  # fmt: skip
