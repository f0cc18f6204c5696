"""Orion (OrionStar 2024): Llama with layer norms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Only norms have biases. `rms_norm_eps` is the layer norms' epsilon."""
    return base_config({"rms_norm_eps": 1e-5, **config}, norm="layer", norm_bias=True)
