"""Mixtral: Mistral with a mixture of experts on every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, MoeConfig, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """The chosen experts' weights sum to one."""
    moe = MoeConfig(config["num_local_experts"], config["num_experts_per_tok"], config["intermediate_size"], True)
    count = config["num_hidden_layers"]
    return base_config(config, sliding_windows=(config.get("sliding_window"),) * count, moe=(moe,) * count)
