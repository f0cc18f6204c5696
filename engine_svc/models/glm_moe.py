"""GLM 4.5 to 4.7 (Zhipu 2025): mixtures of experts as in DeepSeek V3, with plain attention, or DeepSeek's (Flash)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models import deepseek
from engine_svc.models.config import ModelConfig, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """The first layers are dense. Half of each head is rotated, unless the configuration says otherwise."""
    if config["architectures"][0] == "Glm4MoeLiteForCausalLM":
        return deepseek.config_of({"first_k_dense_replace": 1, **config})
    return base_config(
        {"partial_rotary_factor": 0.5, **config},
        qkv_bias=bool(config.get("attention_bias")), qk_norm="head" if config.get("use_qk_norm") else "none",
        moe=deepseek.mixtures(config),
    )  # fmt: skip
