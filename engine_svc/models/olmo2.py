"""OLMo 2: norms behind attention and feed-forward, and over all query heads and all key heads together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Biases are optional."""
    bias = bool(config.get("attention_bias"))
    return base_config(config, qkv_bias=bias, output_bias=bias, qk_norm="all", norm_placement="after")
