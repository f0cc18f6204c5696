"""InternLM 1, 2 and 2.5 (Shanghai AI Laboratory 2023 and 2024): Llama, with other names in checkpoints since 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.layers.part import Layout
from engine_svc.models.config import ModelConfig, base_config

_MODULES = {
    "tok_embeddings": "embed_tokens", "attention": "self_attn", "wqkv": "qkv_proj", "wo": "o_proj",
    "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "output": "lm_head",
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Checkpoints have each key-value head beside its queries. Biases, if any, are on all attention projections."""
    bias = bool(config.get("bias", True))
    groups = config.get("num_key_value_heads") or config["num_attention_heads"]
    return base_config(config, qkv_bias=bias, output_bias=bias, qkv_layout=Layout(groups=groups), module_names=_MODULES)
