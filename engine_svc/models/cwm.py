"""Code World Model (Meta 2025): Llama 3 with sliding windows on three of four layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import llama
from engine_svc.models.config import ModelConfig, sliding_windows

_DEFAULTS: dict[str, Any] = {"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "sliding_window": 8192}
_ROTATION = {
    "rope_type": "llama3", "rope_theta": 1e6, "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """The first layer has no window."""
    given = {**_DEFAULTS, **config}
    if not (config.get("rope_parameters") or config.get("rope_scaling")):
        given["rope_parameters"] = _ROTATION
    return dataclasses.replace(llama.config_of(given), sliding_windows=sliding_windows(given, 4, whole=0))
