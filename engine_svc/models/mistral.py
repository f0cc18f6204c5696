"""Mistral: Llama with a sliding window on every layer, or on none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """No biases; `sliding_window` null means full attention, which `layer_types` may also ask for in some layers."""
    types = config.get("layer_types") or ["sliding_attention"] * config["num_hidden_layers"]
    window = config.get("sliding_window")
    return base_config(config, sliding_windows=tuple(window if kind == "sliding_attention" else None for kind in types))
