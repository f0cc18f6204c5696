"""dots.llm1 (rednote 2025): the attention of Qwen3 and the mixtures of experts of DeepSeek V3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models import deepseek
from engine_svc.models.config import ModelConfig, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Layers from `max_window_layers` on have a sliding window."""
    bias, first = bool(config.get("attention_bias")), config.get("max_window_layers", 62)
    types = config.get("layer_types") or [
        "sliding_attention" if index >= first else "full_attention" for index in range(config["num_hidden_layers"])
    ]
    window = config.get("sliding_window")
    return base_config(
        config, moe=deepseek.mixtures(config), qk_norm="head", qkv_bias=bias, output_bias=bias,
        sliding_windows=tuple(window if each == "sliding_attention" else None for each in types),
    )  # fmt: skip
