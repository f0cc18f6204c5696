"""Jais 2 (Inception 2025): Llama with layer norms, and squared ReLU without gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Norms have biases; other biases are there unless the configuration says no."""
    bias = bool(config.get("attention_bias", True))
    return base_config(
        {"hidden_act": "relu2", **config}, norm="layer", norm_bias=True, norm_eps=config.get("layer_norm_eps", 1e-5),
        qkv_bias=bias, output_bias=bias, mlp_gated=False, mlp_has_up=True, mlp_bias=bool(config.get("mlp_bias", True)),
    )  # fmt: skip
