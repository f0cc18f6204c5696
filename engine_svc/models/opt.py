"""OPT (Meta 2022), Galactica, and XGLM (Meta 2021): position embeddings from the third row of their table on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, activation, base_config, by_common_names

_XGLM_NAMES = {"d_model": "hidden_size", "attention_heads": "num_attention_heads", "num_layers": "num_hidden_layers"}
_MODULES = {
    "decoder": "model", "embed_positions": "positions", "layer_norm": "norm", "self_attn_layer_norm": "input_layernorm",
    "final_layer_norm": "post_attention_layernorm",
}  # fmt: skip
_SUM_MODULES = {**_MODULES, "self_attn_layer_norm": "attention_norm", "final_layer_norm": "output_norm"}
# The norm after the last layer has the same name as one in each layer.
_RENAMES = ((r"^(model\.)?decoder\.final_layer_norm\.", "norm."),)
_FIRST = 2  # the first token's row in the table of positions


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """OPT 350M has norms of sums, after attention and feed-forward, and embeddings smaller than hidden states."""
    is_xglm = config["architectures"][0] == "XGLMForCausalLM"
    config = by_common_names(config, _XGLM_NAMES)
    size, heads, bias = config["hidden_size"], config["num_attention_heads"], bool(config.get("enable_bias", True))
    embedding_size, before = config.get("word_embed_proj_dim") or size, bool(config.get("do_layer_norm_before", True))
    scales, has_weights = is_xglm and config.get("scale_embedding", True), config.get("layer_norm_elementwise_affine")
    return base_config(
        {**config, "intermediate_size": config["ffn_dim"]},
        embedding_size=None if embedding_size == size else embedding_size,
        embedding_scale=math.sqrt(size) if scales else 1.0,
        num_kv_heads=heads, head_dim=size // heads, qkv_bias=bias, output_bias=bias,
        no_rope_layers=frozenset(range(config["num_hidden_layers"])),
        num_positions=config["max_position_embeddings"] + _FIRST, first_position=_FIRST, positions_are_waves=is_xglm,
        norm="layer", norm_eps=1e-5, norm_weight=has_weights is not False, norm_bias=has_weights is not False,
        norm_placement="before" if before else "sums",
        has_norm=before and not config.get("_remove_final_layer_norm"),
        activation=activation(config.get("activation_function", "gelu" if is_xglm else "relu")),
        mlp_gated=False, mlp_bias=bias, tie_word_embeddings=config.get("tie_word_embeddings", True),
        module_names=_MODULES if before else _SUM_MODULES, renames=_RENAMES,
        ignored_names=("embed_positions.weights",) if is_xglm else (),
    )  # fmt: skip
