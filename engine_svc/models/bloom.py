"""BLOOM and BLOOMZ (BigScience 2022): ALiBi in place of positions, a norm after the embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.layers.part import Layout
from engine_svc.models.alibi import alibi_slopes
from engine_svc.models.config import ModelConfig, base_config, by_common_names
from quire.errors import StartupError

_NAMES = {
    "n_embed": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers",
    "seq_length": "max_position_embeddings",
}  # fmt: skip
_MODULES = {
    "transformer": "model", "word_embeddings": "embed_tokens", "word_embeddings_layernorm": "embedding_norm",
    "h": "layers", "ln_f": "norm", "self_attention": "self_attn", "query_key_value": "qkv_proj", "dense": "o_proj",
    "dense_h_to_4h": "fc_in", "dense_4h_to_h": "fc_out",
}  # fmt: skip
_LENGTH = 2048  # all of them were trained with this length, but not all configurations say so


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Checkpoints have query, key and value of each head side by side.

    Raises:
        StartupError: residual connections start from the norms' outputs.
    """
    if config.get("apply_residual_connection_post_layernorm"):
        raise StartupError("config.json sets apply_residual_connection_post_layernorm, which is not supported.")
    config = {"max_position_embeddings": _LENGTH, **by_common_names(config, _NAMES)}
    size, heads = config["hidden_size"], config["num_attention_heads"]
    return base_config(
        {**config, "intermediate_size": 4 * size}, embedding_norm=True,
        num_kv_heads=heads, head_dim=size // heads, qkv_layout=Layout(groups=heads), qkv_bias=True, output_bias=True,
        attention_slopes=alibi_slopes(heads), no_rope_layers=frozenset(range(config["num_hidden_layers"])),
        norm="layer", norm_bias=True, norm_eps=config.get("layer_norm_epsilon", 1e-5),
        activation="gelu_tanh", mlp_gated=False, mlp_bias=True,
        tie_word_embeddings=config.get("tie_word_embeddings", True), module_names=_MODULES,
    )  # fmt: skip
