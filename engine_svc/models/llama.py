"""Llama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Biases, if any, are on all four attention projections."""
    bias = bool(config.get("attention_bias"))
    return base_config(config, qkv_bias=bias, output_bias=bias, mlp_bias=bool(config.get("mlp_bias")))
