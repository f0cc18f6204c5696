"""MiniCPM 1, 2 and 4 (OpenBMB 2024 and 2025): Llama with factors on embeddings, layer outputs and logits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine_svc.models import granite
from engine_svc.models.config import ModelConfig, MoeConfig, base_config
from quire.errors import StartupError


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """The outputs of layers are scaled by depth, and logits by width, relative to a smaller model.

    Raises:
        StartupError: it asks for sparse attention.
    """
    if config.get("sparse_config"):
        raise StartupError(
            "config.json has a sparse_config (InfLLM v2), which is not supported. To attend to all tokens: "
            """--hf-overrides '{"sparse_config": null}'."""
        )
    layers, size = config["num_hidden_layers"], config["hidden_size"]
    bias, moe = bool(config.get("attention_bias")), None
    if count := config.get("num_experts"):
        moe = MoeConfig(count, config["num_experts_per_tok"], config["intermediate_size"], renormalize=True)
    return base_config(
        {"tie_word_embeddings": True, **config}, qkv_bias=bias, output_bias=bias, moe=(moe,) * layers,
        embedding_scale=config.get("scale_emb", 1), logits_scale=config.get("dim_model_base", 1) / size,
        **granite.scaled_outputs(config, config.get("scale_depth", 1) / math.sqrt(layers)),
    )  # fmt: skip
