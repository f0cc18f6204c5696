"""ERNIE 4.5, dense (Baidu): Llama with neighboring values rotated with each other. PaddleOCR-VL's rotates as Llama."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Either all projections have biases, or none."""
    bias = bool(config.get("use_bias"))
    return base_config(
        config, head_dim=config.get("head_dim") or 128, qkv_bias=bias, output_bias=bias, mlp_bias=bias,
        rope_interleaved=config.get("model_type") != "paddleocr_vl_text",
        tie_word_embeddings=config.get("tie_word_embeddings", True),
    )  # fmt: skip
