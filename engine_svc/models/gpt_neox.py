"""GPT-NeoX (EleutherAI 2022), Pythia, Dolly 2: attention and feed-forward in parallel, each after its own norm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.layers.part import Layout
from engine_svc.models.config import ModelConfig, base_config

_MODULES = {
    "gpt_neox": "model", "embed_in": "embed_tokens", "final_layer_norm": "norm", "embed_out": "lm_head",
    "attention": "self_attn", "query_key_value": "qkv_proj", "dense": "o_proj", "dense_h_to_4h": "fc_in",
    "dense_4h_to_h": "fc_out",
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """A part of each head is rotated; checkpoints have query, key and value of each head side by side."""
    is_parallel, bias = config.get("use_parallel_residual", True), bool(config.get("attention_bias", True))
    heads = config["num_attention_heads"]
    return base_config(
        {
            "hidden_act": "gelu", "rope_theta": config.get("rotary_emb_base", 10000.0), **config,
            "partial_rotary_factor": config.get("rotary_pct", 0.25),
        },
        num_kv_heads=heads, head_dim=config["hidden_size"] // heads, qkv_layout=Layout(groups=heads), qkv_bias=bias,
        output_bias=bias, norm="layer", norm_bias=True, norm_eps=config.get("layer_norm_eps", 1e-5),
        norm_placement="parallel norms" if is_parallel else "before", mlp_gated=False, mlp_bias=True,
        module_names=_MODULES | ({"post_attention_layernorm": "mlp_layernorm"} if is_parallel else {}),
        ignored_names=("attention.bias", "attention.masked_bias"),
    )  # fmt: skip
