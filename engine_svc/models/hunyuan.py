"""Hunyuan V1, dense (Tencent): query and key are normalized per head, after their rotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config, rope_parameters


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Biases, if any, are on all four attention projections."""
    return base_config(config, **attention(config))


def attention(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ModelConfig that are common to Hunyuan's families."""
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    bias = bool(config.get("attention_bias"))
    return {
        "head_dim": head_dim,
        "rope_parameters": _stretched(rope_parameters(config), head_dim),
        "qkv_bias": bias,
        "output_bias": bias,
        "qk_norm": "rotated",
        "module_names": {"query_layernorm": "q_norm", "key_layernorm": "k_norm"},
    }


def _stretched(parameters: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """`dynamic` scaling with an `alpha` scales the base by a constant, independent of the length."""
    alpha = parameters.get("alpha")
    if parameters["rope_type"] != "dynamic" or not alpha:
        return parameters
    theta = parameters["rope_theta"] * alpha ** (head_dim / (head_dim - 2))
    return {**parameters, "rope_type": "default", "rope_theta": theta}
