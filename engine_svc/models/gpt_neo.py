"""GPT-Neo (EleutherAI 2021): learned positions, unscaled scores, windows on some layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, activation, base_config, by_common_names
from engine_svc.models.gptj import GPT_MODULES

_NAMES = {"num_heads": "num_attention_heads", "num_layers": "num_hidden_layers"}
_MODULES = {
    **GPT_MODULES, "wpe": "positions", "ln_2": "post_attention_layernorm", "c_fc": "fc_in", "c_proj": "fc_out",
}  # fmt: skip
del _MODULES["attn"]  # here it is attn.attention, a two-part name that module_names.py handles


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Biases are everywhere except on queries, keys and values."""
    config = by_common_names(config, _NAMES)
    size, heads, layers = config["hidden_size"], config["num_attention_heads"], config["num_hidden_layers"]
    window = config.get("window_size", 256)
    return base_config(
        {**config, "intermediate_size": config.get("intermediate_size") or 4 * size},
        num_kv_heads=heads, head_dim=size // heads, attention_scale=1.0, output_bias=True,
        sliding_windows=tuple(window if kind == "local" else None for kind in _kinds(config)),
        no_rope_layers=frozenset(range(layers)), num_positions=config["max_position_embeddings"],
        norm="layer", norm_bias=True, norm_eps=config.get("layer_norm_epsilon", 1e-5),
        activation=activation(config.get("activation_function", "gelu_new")), mlp_gated=False, mlp_bias=True,
        tie_word_embeddings=config.get("tie_word_embeddings", True), module_names=_MODULES,
        ignored_names=("attention.bias", "attention.masked_bias"),
    )  # fmt: skip


def _kinds(config: Mapping[str, Any]) -> list[str]:
    """The kind of attention of each layer: from a list, or from patterns with their numbers of repetitions."""
    given = config.get("attention_layers")
    if given:
        return list(given)
    patterns = config.get("attention_types") or [[["global", "local"], config["num_hidden_layers"] // 2]]
    return [kind for pattern, count in patterns for kind in pattern * count]
