"""Mistral: Llama with a sliding window on every layer, or on none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """No biases; `sliding_window` null means full attention."""
    return base_config(config, sliding_windows=(config.get("sliding_window"),) * config["num_hidden_layers"])
