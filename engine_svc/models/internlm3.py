"""InternLM 3: Llama, but with other names for biases in its configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """`qkv_bias` is for query, key and value, `bias` for all others; Transformers uses Llama's names for them."""
    others = bool(config.get("bias", config.get("mlp_bias")))
    return base_config(
        config,
        qkv_bias=bool(config.get("qkv_bias", config.get("attention_bias"))),
        output_bias=others,
        mlp_bias=others,
    )
