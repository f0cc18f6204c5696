"""Falcon H1 (TII 2025): attention and Mamba 2 in parallel in each layer; multipliers on inputs and outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models.bamba import mamba2_config
from engine_svc.models.config import ModelConfig, Multipliers, base_config
from engine_svc.models.recurrent_config import Mamba2Config

_NAMES = {"pre_ff_layernorm": "post_attention_layernorm", "final_layernorm": "norm"}


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Biases, if any, are on all four attention projections."""
    layers, bias = range(config["num_hidden_layers"]), bool(config.get("attention_bias"))
    gate, down = config.get("mlp_multipliers") or (1.0, 1.0)
    common = base_config(
        config,
        recurrent=dict.fromkeys(layers, _mamba2(config)), attending=frozenset(layers), module_names=_NAMES,
        qkv_bias=bias, output_bias=bias, mlp_bias=bool(config.get("mlp_bias")),
        norm_eps=config.get("rms_norm_eps", 1e-5), embedding_multiplier=_factor(config, "embedding_multiplier"),
        logits_scale=_factor(config, "lm_head_multiplier"),
        multipliers=Multipliers(
            attention=(_factor(config, "attention_in_multiplier"), _factor(config, "attention_out_multiplier")),
            recurrent=(_factor(config, "ssm_in_multiplier"), _factor(config, "ssm_out_multiplier")),
            mlp=(gate, down),
        ),
    )  # fmt: skip
    # A factor on keys is the same as one on scores.
    return dataclasses.replace(common, attention_scale=common.attention_scale * _factor(config, "key_multiplier"))


def _mamba2(config: Mapping[str, Any]) -> Mamba2Config:
    size = config.get("mamba_d_ssm") or config.get("mamba_expand", 2) * config["hidden_size"]
    heads, head_dim = config.get("mamba_n_heads", 128), config.get("mamba_d_head", "auto")
    norm_first = config.get("mamba_norm_before_gate", True)
    gates, values, writes, reads, steps = config.get("ssm_multipliers") or (1.0,) * 5
    return dataclasses.replace(
        mamba2_config({**config, "mamba_d_head": size // heads if head_dim == "auto" else head_dim}),
        output_bias=bool(config.get("projectors_bias")), multipliers=(gates, values, writes, reads, steps),
        norm="none" if not config.get("mamba_rms_norm") else "norm_first" if norm_first else "gates_first",
    )  # fmt: skip


def _factor(config: Mapping[str, Any], name: str) -> float:
    found = config.get(name)
    return 1.0 if found is None else float(found)
