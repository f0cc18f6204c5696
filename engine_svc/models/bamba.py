"""Bamba (IBM, Princeton, UIUC 2024): Mamba 2 in most layers, attention in a few, with half of each head rotated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config
from engine_svc.models.recurrent_config import Mamba2Config

_NAMES = {"pre_ff_layernorm": "post_attention_layernorm", "final_layernorm": "norm"}


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Biases, if any, are on all four attention projections."""
    attending = config.get("attn_layer_indices") or ()
    bias, mamba2 = bool(config.get("attention_bias")), mamba2_config(config)
    return base_config(
        {**config, "partial_rotary_factor": 0.5},
        recurrent={index: mamba2 for index in range(config["num_hidden_layers"]) if index not in attending},
        qkv_bias=bias, output_bias=bias, mlp_bias=bool(config.get("mlp_bias")), module_names=_NAMES,
        norm_eps=config.get("rms_norm_eps", 1e-5),
    )  # fmt: skip


def mamba2_config(config: Mapping[str, Any]) -> Mamba2Config:
    """Reads the Mamba 2 fields of config.json as Bamba and Granite name them."""
    heads, head_dim = config.get("mamba_n_heads", 128), config.get("mamba_d_head", "auto")
    size = config.get("mamba_expand", 2) * config["hidden_size"]
    least, most = (number(each) for each in config.get("time_step_limit") or (0.0, math.inf))
    return Mamba2Config(
        heads=heads, head_dim=size // heads if head_dim == "auto" else head_dim,
        groups=config.get("mamba_n_groups", 1), state_size=config.get("mamba_d_state", 256),
        taps=config.get("mamba_d_conv", 4), bias=bool(config.get("mamba_proj_bias")),
        convolution_bias=bool(config.get("mamba_conv_bias", True)), time_limits=(least, most),
        norm_epsilon=config.get("rms_norm_eps", 1e-5),
    )  # fmt: skip


def number(value: float | Mapping[str, str]) -> float:
    """Converts a number; Transformers writes floats that JSON cannot represent as {"__float__": "Infinity"}."""
    return float(value["__float__"]) if isinstance(value, Mapping) else float(value)
