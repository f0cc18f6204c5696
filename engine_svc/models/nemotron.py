"""Nemotron 3 and 4, Minitron (NVIDIA 2023, 2024): layer norms, squared ReLU without gates, partly rotated heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Norms have biases, and are stored with their weights less one. Other biases are optional."""
    bias = bool(config.get("attention_bias"))
    return base_config(
        {"hidden_act": "relu2", "partial_rotary_factor": 0.5, **config},
        norm="layer", norm_bias=True, norm_offset=1.0, norm_eps=config.get("norm_eps", 1e-5),
        qkv_bias=bias, output_bias=bias, mlp_gated=False, mlp_has_up=True, mlp_bias=bool(config.get("mlp_bias")),
    )  # fmt: skip
