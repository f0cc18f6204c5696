"""Solar Open (Upstage 2025): Llama with DeepSeek's mixtures of experts on every layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models import deepseek
from engine_svc.models.config import ModelConfig, base_config

_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5, "n_shared_experts": 1, "n_group": 1,
    "topk_group": 1,
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Biases, if any, are on queries, keys and values. As no layer is dense, there may be no size of such layers."""
    given = {**_DEFAULTS, "intermediate_size": config["moe_intermediate_size"], **config}
    return base_config(given, qkv_bias=bool(config.get("attention_bias")), moe=deepseek.mixtures(given))
