"""StarCoder 2 (BigCode 2024): layer norms, biases everywhere, a feed-forward layer without gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config

_MODULES = {"c_fc": "fc_in"}


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """All layers have the window, if there is one."""
    bias = bool(config.get("use_bias", True))
    return base_config(
        {"hidden_act": "gelu_pytorch_tanh", **config},
        sliding_windows=(config.get("sliding_window"),) * config["num_hidden_layers"],
        qkv_bias=bias, output_bias=bias, mlp_gated=False, mlp_bias=bias,
        norm="layer", norm_bias=True, norm_eps=config.get("norm_epsilon", 1e-5),
        tie_word_embeddings=config.get("tie_word_embeddings", True), module_names=_MODULES,
    )  # fmt: skip
