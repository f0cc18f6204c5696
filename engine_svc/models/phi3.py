"""Phi-3 and Phi-4: Llama with fused projections in the checkpoint; only a part of each head may be rotated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config, rope_parameters


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """`longrope` needs to know where the short context ends, which the configuration has outside its parameters."""
    parameters = rope_parameters(config)
    if original := config.get("original_max_position_embeddings"):
        parameters.setdefault("original_max_position_embeddings", original)
    windows = (config.get("sliding_window"),) * config["num_hidden_layers"]
    return base_config(config, sliding_windows=windows, rope_parameters=parameters)
