"""OLMo (Ai2 2024): layer norms without weights; queries, keys and values may be clipped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config

_NORM_EPSILON = 1e-5


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Biases, if any, are on all four attention projections."""
    bias = bool(config.get("attention_bias"))
    return base_config(
        config, norm="layer", norm_weight=False, norm_eps=_NORM_EPSILON, qkv_bias=bias, output_bias=bias,
        qkv_clip=config.get("clip_qkv"),
    )  # fmt: skip
