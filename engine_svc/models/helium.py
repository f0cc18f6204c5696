"""Helium (Kyutai): Llama with neighboring values rotated with each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Biases, if any, are on query, key and value."""
    return base_config(
        config, head_dim=config.get("head_dim") or 128, qkv_bias=bool(config.get("attention_bias")),
        mlp_bias=bool(config.get("mlp_bias")), rope_interleaved=True,
    )  # fmt: skip
