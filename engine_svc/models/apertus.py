"""Apertus (Swiss AI 2025): query and key are normalized per head, and xIELU in feed-forward layers without gates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, activation, base_config

_ROPE = {
    "rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Biases, if any, are on all four attention projections."""
    bias, name = bool(config.get("attention_bias")), config.get("hidden_act", "xielu")
    rope = config.get("rope_parameters") or config.get("rope_scaling") or _ROPE
    return base_config(
        {"rms_norm_eps": 1e-5, **config, "rope_parameters": rope},
        activation="xielu" if name == "xielu" else activation(name), mlp_gated=False, mlp_has_up=True,
        qk_norm="head", qkv_bias=bias, output_bias=bias,
        module_names={"attention_layernorm": "input_layernorm", "feedforward_layernorm": "post_attention_layernorm"},
        renames=((r"\.act_fn\.(\w+)$", r".\1.weight"),),
    )  # fmt: skip
