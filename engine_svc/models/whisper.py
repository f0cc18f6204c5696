"""Whisper (OpenAI 2022): the decoder, which attends to a recording of 30 s that an encoder has read.

A sequence begins with a token for each of the encoder's rows, filled up to whole blocks. Positions are counted from the
text on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, activation, base_config, by_common_names
from quire.errors import StartupError
from quire.media import filled_up

_NAMES = {
    "d_model": "hidden_size", "decoder_attention_heads": "num_attention_heads", "decoder_layers": "num_hidden_layers",
    "decoder_ffn_dim": "intermediate_size",
}  # fmt: skip
_MODULES = {
    "decoder": "model", "embed_positions": "positions", "layer_norm": "norm", "self_attn_layer_norm": "input_layernorm",
    "encoder_attn": "cross_attn", "encoder_attn_layer_norm": "cross_layernorm",
    "final_layer_norm": "post_attention_layernorm", "proj_out": "lm_head",
}  # fmt: skip
_RENAMES = tuple(
    (rf"\.encoder_attn\.{theirs}\.", f".encoder_attn.{ours}.")
    for theirs, ours in (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("out_proj", "o_proj"))
)


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """
    Raises:
        StartupError: there may be more text than the encoder has rows.
    """
    rows, text = config["max_source_positions"], config["max_target_positions"]
    if text > rows:
        raise StartupError(
            f"config.json: max_target_positions is {text}; expected at most max_source_positions, {rows}."
        )
    encoded = filled_up(rows)
    # Of the names in `_NAMES`, Transformers' configuration means the encoder's by the common ones.
    config = by_common_names({name: config[name] for name in config if name not in _NAMES.values()}, _NAMES)
    size, heads = config["hidden_size"], config["num_attention_heads"]
    return base_config(
        {**config, "max_position_embeddings": encoded + text},
        encoder_tokens=encoded, encoder_rows=rows, num_positions=text, keeps_all_rows=True,
        embedding_scale=math.sqrt(size) if config.get("scale_embedding") else 1.0,
        num_kv_heads=heads, head_dim=size // heads, qkv_bias=True, key_bias=False, output_bias=True,
        no_rope_layers=frozenset(range(config["num_hidden_layers"])),
        norm="layer", norm_bias=True, norm_eps=1e-5, norm_placement="cross",
        activation=activation(config.get("activation_function", "gelu")), mlp_gated=False, mlp_bias=True,
        tie_word_embeddings=True, module_names=_MODULES, renames=_RENAMES, ignored_names=("encoder.",),
    )  # fmt: skip
