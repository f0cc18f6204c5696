"""Qwen 1 (Alibaba 2023): Llama with biases on queries, keys and values, and other names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config, by_common_names
from quire.errors import StartupError

_NAMES = {
    "layer_norm_epsilon": "rms_norm_eps", "rotary_emb_base": "rope_theta", "rotary_pct": "partial_rotary_factor",
    "kv_channels": "head_dim",
}  # fmt: skip
_MODULES = {
    "transformer": "model", "wte": "embed_tokens", "h": "layers", "ln_f": "norm", "attn": "self_attn",
    "ln_1": "input_layernorm", "ln_2": "post_attention_layernorm", "c_attn": "qkv_proj",
}  # fmt: skip
_RENAMES = (
    (r"\.attn\.c_proj\.", ".attn.o_proj."), (r"\.mlp\.c_proj\.", ".mlp.down_proj."), (r"\.mlp\.w1\.", ".mlp.up_proj."),
    (r"\.mlp\.w2\.", ".mlp.gate_proj."),
)  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """`intermediate_size` counts the features of gates and of what they multiply.

    Longer texts than `seq_length` are read with other rotations and scores if the model has `use_dynamic_ntk` or
    `use_logn_attn`. Neither is supported, so that is then the longest text.

    Raises:
        StartupError: it also sees images.
    """
    if config.get("visual"):
        raise StartupError("config.json has a part named visual: Qwen-VL 1 is not supported. Use a newer Qwen-VL.")
    given = by_common_names(config, _NAMES)
    longest, trained = given["max_position_embeddings"], given.get("seq_length")
    if trained and (given.get("use_dynamic_ntk") or given.get("use_logn_attn")):
        longest = min(longest, trained)
    bias = not given.get("no_bias", True)
    return base_config(
        {**given, "intermediate_size": given["intermediate_size"] // 2, "max_position_embeddings": longest},
        qkv_bias=True, output_bias=bias, mlp_bias=bias, activation="silu", module_names=_MODULES, renames=_RENAMES,
    )  # fmt: skip
