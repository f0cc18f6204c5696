"""Mistral, Ministral 8B (2024): Llama with a sliding window on every layer, on some or on none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config

_MINISTRAL: dict[str, Any] = {"num_key_value_heads": 8, "sliding_window": 4096}  # fields that may be left out


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """No biases; `sliding_window` null means full attention, which `layer_types` may also ask for in some layers."""
    if config["architectures"][0] == "MinistralForCausalLM":
        config = {**_MINISTRAL, **config}
    types = config.get("layer_types") or ["sliding_attention"] * config["num_hidden_layers"]
    window = config.get("sliding_window")
    return base_config(config, sliding_windows=tuple(window if kind == "sliding_attention" else None for kind in types))
