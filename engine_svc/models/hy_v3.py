"""Hunyuan 3 (Tencent 2026): the attention of Qwen3, and mixtures of experts as in DeepSeek V3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models import deepseek
from engine_svc.models.config import ModelConfig, base_config

_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-5, "first_k_dense_replace": 1,
    "num_shared_experts": 1, "router_scaling_factor": 2.826, "n_group": 1, "topk_group": 1,
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """The first layer is dense. Biases, if any, are on all projections of attention, or of feed-forward layers."""
    given, bias = {**_DEFAULTS, **config}, bool(config.get("attention_bias"))
    return base_config(
        given, qk_norm="head", qkv_bias=bias, output_bias=bias, mlp_bias=bool(config.get("mlp_bias")),
        moe=deepseek.mixtures(given), renames=deepseek.ROUTER_RENAMES,
    )  # fmt: skip
