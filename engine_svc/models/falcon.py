"""Falcon (TII 2023): attention and feed-forward in parallel, few key-value heads; ALiBi in Falcon RW."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from engine_svc.layers.part import Layout
from engine_svc.models.alibi import alibi_slopes
from engine_svc.models.config import ModelConfig, activation, base_config, by_common_names

# Field names in configurations for the custom code of the first checkpoints.
_NAMES = {
    "n_embed": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers",
    "n_head_kv": "num_kv_heads",
}  # fmt: skip
_MODULES = {
    "transformer": "model", "word_embeddings": "embed_tokens", "h": "layers", "ln_f": "norm",
    "self_attention": "self_attn", "query_key_value": "qkv_proj", "dense": "o_proj", "ln_attn": "input_layernorm",
    "ln_mlp": "mlp_layernorm", "dense_h_to_4h": "fc_in", "dense_4h_to_h": "fc_out",
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Models after 7B have several key-value heads and, except 11B, separate norms for attention and feed-forward."""
    config = {"max_position_embeddings": 2048, **by_common_names(config, _NAMES)}
    is_new = bool(config.get("new_decoder_architecture", config.get("model_type") == "RefinedWeb"))
    size, heads = config["hidden_size"], config["num_attention_heads"]
    kv_heads, layout = _key_values(config, heads, is_new)
    bias, is_linear = bool(config.get("bias")), bool(config.get("alibi"))
    return base_config(
        {**config, "intermediate_size": config.get("ffn_hidden_size") or 4 * size},
        num_kv_heads=kv_heads, head_dim=size // heads, qkv_layout=layout, qkv_bias=bias, output_bias=bias,
        attention_slopes=_slopes(heads, size // heads) if is_linear else (),
        no_rope_layers=frozenset(range(config["num_hidden_layers"] if is_linear else 0)),
        norm="layer", norm_bias=True, norm_eps=config.get("layer_norm_epsilon", 1e-5),
        norm_placement=_placement(config, is_new),
        activation=activation(config.get("activation", "gelu")), mlp_gated=False, mlp_bias=bias,
        tie_word_embeddings=config.get("tie_word_embeddings", True), module_names=_MODULES,
    )  # fmt: skip


def _key_values(config: Mapping[str, Any], heads: int, is_new: bool) -> tuple[int, Layout]:
    """The number of key-value heads, and the layout of checkpoints, which have the queries of each beside it."""
    if is_new:
        count = config.get("num_kv_heads") or heads
        return count, Layout(groups=count)
    return (1, Layout()) if config.get("multi_query", True) else (heads, Layout(groups=heads))


def _slopes(heads: int, head_dim: int) -> tuple[float, ...]:
    """Slopes rounded as in training, and scaled like the scores that they lower."""
    return tuple((torch.tensor(alibi_slopes(heads)).bfloat16().double() * head_dim**-0.5).tolist())


def _placement(config: Mapping[str, Any], is_new: bool) -> str:
    if is_new:
        return "parallel" if config.get("num_ln_in_parallel_attn") == 1 else "parallel norms"
    return "parallel" if config.get("parallel_attn", True) else "before"
