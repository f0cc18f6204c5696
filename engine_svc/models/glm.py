"""GLM 4, dense (Zhipu 2024): half of each head is rotated, neighboring values with each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config

# Names of norms in the models of 2025, which have norms before and after attention and feed-forward.
NORMS = {
    "post_self_attn_layernorm": "post_attention_layernorm", "post_attention_layernorm": "pre_feedforward_layernorm",
    "post_mlp_layernorm": "post_feedforward_layernorm",
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Biases are on query, key and value."""
    is_glm4 = config["architectures"][0] == "Glm4ForCausalLM"
    reads_images = "vision_config" in config
    default_size = config["hidden_size"] // config["num_attention_heads"] if reads_images else 128
    return base_config(
        {"partial_rotary_factor": 0.5, **config},
        head_dim=config.get("head_dim") or default_size, qkv_bias=bool(config.get("attention_bias", True)),
        norm_eps=config.get("rms_norm_eps", 1.5625e-7), rope_interleaved=True,
        norm_placement="around" if is_glm4 else "before", module_names=NORMS if is_glm4 else {},
    )  # fmt: skip
