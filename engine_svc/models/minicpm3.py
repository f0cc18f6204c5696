"""MiniCPM 3 (OpenBMB 2024): compressed attention, and multipliers for embeddings, layer outputs and logits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine_svc.models import deepseek, granite
from engine_svc.models.config import ModelConfig

_DEFAULTS: dict[str, Any] = {
    "q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "rms_norm_eps": 1e-5,
    "rope_interleave": False, "tie_word_embeddings": True,
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """The outputs of layers are scaled by depth, and logits by width, relative to a smaller model."""
    size, layers = config["hidden_size"], config["num_hidden_layers"]
    # A null means that nothing is scaled.
    depth = config.get("scale_depth", 1.4) or math.sqrt(layers)
    given = {**_DEFAULTS, **config, "v_head_dim": config.get("v_head_dim") or size // config["num_attention_heads"]}
    return deepseek.compressed(
        given, embedding_scale=config.get("scale_emb", 12), mlp_bias=bool(config.get("mlp_bias")),
        logits_scale=(config.get("dim_model_base", 256) or size) / size,
        **granite.scaled_outputs(given, depth / math.sqrt(layers)),
    )  # fmt: skip
