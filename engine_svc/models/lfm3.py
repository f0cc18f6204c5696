"""LFM3 (Liquid AI 2026): short convolutions, windowed and full attention; a gate per head; norms before and after."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config, local_rotation, one_rotation
from engine_svc.models.lfm2 import LFM_MODULES
from engine_svc.models.recurrent_config import ShortConvolutionConfig

_SANDWICH_MODULES = {
    **LFM_MODULES, "post_operator_norm": "post_attention_layernorm", "ffn_norm": "pre_feedforward_layernorm",
    "post_ffn_norm": "post_feedforward_layernorm",
}  # fmt: skip
_RENAMES = ((r"\.self_attn\.gate_proj\.", ".self_attn.g_proj."),)  # gate_proj is for feed-forward layers elsewhere
_ROTATION = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.5}
_LOCAL_BASE = 10000.0


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """The kinds of layers are given by their types, or else repeat every four layers."""
    layers, bias = range(config["num_hidden_layers"]), bool(config.get("attention_bias"))
    types = config.get("layer_types") or [
        "full_attention" if index % 4 == 2 else "sliding_attention" if index and index % 4 == 0 else "conv"
        for index in layers
    ]
    convolution = ShortConvolutionConfig(taps=config.get("conv_L_cache", 7), bias=bool(config.get("conv_bias")))
    around, head_dim = bool(config.get("use_sandwich_norm", True)), config.get("head_dim", 128)
    window = config.get("sliding_window", 256)
    return base_config(
        one_rotation(config if config.get("rope_parameters") else {**config, "rope_parameters": _ROTATION}),
        head_dim=head_dim, rotary_dim=head_dim, local_rope_parameters=local_rotation(config, _LOCAL_BASE),
        sliding_windows=tuple(window if kind == "sliding_attention" else None for kind in types),
        qk_norm="head", attention_gates="heads" if config.get("use_attention_gate", True) else "none",
        qkv_bias=bias, output_bias=bias,
        norm_eps=config.get("norm_eps", 1e-5), norm_placement="around" if around else "before",
        recurrent={index: convolution for index in layers if types[index] == "conv"},
        tie_word_embeddings=config.get("tie_word_embeddings", True),
        module_names=_SANDWICH_MODULES if around else LFM_MODULES, renames=_RENAMES,
    )  # fmt: skip
