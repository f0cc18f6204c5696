"""ChatGLM 2 and 3, GLM 4 9B as first published (Zhipu 2023 and 2024): GLM with other names."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import glm
from engine_svc.models.config import ModelConfig, by_common_names
from quire.errors import StartupError

_NAMES = {
    "num_layers": "num_hidden_layers", "ffn_hidden_size": "intermediate_size", "kv_channels": "head_dim",
    "layernorm_epsilon": "rms_norm_eps", "seq_length": "max_position_embeddings",
}  # fmt: skip
_MODULES = {
    "transformer": "model", "final_layernorm": "norm", "output_layer": "lm_head", "self_attention": "self_attn",
    "query_key_value": "qkv_proj", "dense": "o_proj", "dense_h_to_4h": "gate_up_proj", "dense_4h_to_h": "down_proj",
}  # fmt: skip
_RENAMES = ((r"\.embedding\.word_embeddings\.", ".embed_tokens."), (r"^transformer\.encoder\.", "transformer."))
# Options that none of the supported models uses, and their values when they are off.
_PLAIN: dict[str, Any] = {
    "rmsnorm": True, "post_layer_norm": True, "apply_residual_connection_post_layernorm": False,
    "add_bias_linear": False, "original_rope": True, "pre_seq_len": None, "quantization_bit": 0,
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """`rope_ratio` multiplies the rotary base.

    Raises:
        StartupError: it is the first ChatGLM, or has an option that is not supported.
    """
    if "multi_query_attention" not in config:
        raise StartupError("config.json has no multi_query_attention: ChatGLM 1 is not supported, 2 and later are.")
    for name, plain in _PLAIN.items():
        if config.get(name, plain) not in (plain, None):
            raise StartupError(f"config.json has {name} {config[name]!r}; supported is {plain!r}.")
    given = {
        **by_common_names(config, _NAMES), "vocab_size": config["padded_vocab_size"],
        "attention_bias": bool(config.get("add_qkv_bias")),
        "rope_theta": 10_000.0 * config.get("rope_ratio", 1),
        "num_key_value_heads": config["multi_query_group_num"] if config["multi_query_attention"] else None,
    }  # fmt: skip
    return dataclasses.replace(
        glm.config_of(given), module_names=_MODULES, renames=_RENAMES, ignored_names=("rotary_pos_emb.",)
    )
