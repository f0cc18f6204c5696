"""Ministral 3: Mistral with queries that grow with their positions beyond the lengths of pre-training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, Temperature, base_config, rope_parameters


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """All layers have the same window, or none."""
    windows = (config.get("sliding_window"),) * config["num_hidden_layers"]
    return base_config(config, sliding_windows=windows, temperature=growing_queries(config))


def growing_queries(config: Mapping[str, Any]) -> Temperature | None:
    """How queries grow with their positions; None if they do not."""
    rope = rope_parameters(config)
    growth = rope.get("llama_4_scaling_beta")
    return None if growth is None else Temperature(rope["original_max_position_embeddings"], growth, rotating=True)
