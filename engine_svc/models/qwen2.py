"""Qwen2 and Qwen2.5, and MiMo (Xiaomi 2025): biases on query, key and value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config, windows_by_type


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Some layers may have a sliding window."""
    return base_config(
        config, qkv_bias=True, sliding_windows=windows_by_type(config),
        ignored_names=("mtp_layers.",),  # of MiMo: a layer for multi-token prediction
    )  # fmt: skip
