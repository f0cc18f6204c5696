"""Qwen3, dense: query and key are normalized per head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config, windows_by_type


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """The configuration has the head size; biases are optional."""
    bias = bool(config.get("attention_bias"))
    return base_config(
        config, head_dim=config.get("head_dim") or 128, qk_norm="head", qkv_bias=bias, output_bias=bias,
        sliding_windows=windows_by_type(config),
    )  # fmt: skip
