"""Granite 3 and 4, dense (IBM): Llama with multipliers for embeddings, scores, layer outputs and logits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Biases, if any, are on all four attention projections."""
    bias = bool(config.get("attention_bias"))
    return base_config(
        config, qkv_bias=bias, output_bias=bias, mlp_bias=bool(config.get("mlp_bias")), **multipliers(config)
    )


def multipliers(config: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ModelConfig that are common to Granite's families."""
    return scaled_outputs(config, config.get("residual_multiplier", 1.0)) | {
        "attention_scale": config.get("attention_multiplier", 1.0),
        "logits_scale": 1.0 / config.get("logits_scaling", 1.0),
    }


def scaled_outputs(config: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """Fields of ModelConfig for layers whose outputs are multiplied by `factor` before they are added to the residual.

    Here, the whole residual is kept divided by it instead: embeddings, and features of images that are added between
    layers, are divided by it, and norms give the same result if epsilon is divided by its square.
    """
    return {
        "embedding_multiplier": config.get("embedding_multiplier", 1.0) / factor,
        "feature_scale": 1.0 / factor,
        "norm_eps": config.get("rms_norm_eps", 1e-6) / factor**2,
    }
