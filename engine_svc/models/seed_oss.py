"""Seed-OSS (ByteDance): Llama with biases on query, key and value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Biases of the other projections have separate options."""
    return base_config(
        config,
        head_dim=config.get("head_dim") or 128,
        qkv_bias=bool(config.get("attention_bias", True)),
        output_bias=bool(config.get("attention_out_bias")),
        mlp_bias=bool(config.get("mlp_bias")),
    )
