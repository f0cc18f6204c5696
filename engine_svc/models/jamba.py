"""Jamba (AI21 2024): some layers attend, without rotation, the others are Mamba; every second has experts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, MoeConfig, base_config
from engine_svc.models.recurrent_config import MambaConfig

_NAMES = {"pre_ff_layernorm": "post_attention_layernorm", "final_layernorm": "norm"}


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Periods and offsets say which layers attend, and which are mixtures of experts."""
    layers = range(config["num_hidden_layers"])
    mamba = _mamba(config)
    moe = MoeConfig(config["num_experts"], config["num_experts_per_tok"], config["intermediate_size"], False)

    def at(index: int, name: str, period: int, offset: int) -> bool:
        return index % config.get(f"{name}_layer_period", period) == config.get(f"{name}_layer_offset", offset)

    return base_config(
        config,
        recurrent={index: mamba for index in layers if not at(index, "attn", 8, 4)},
        moe=tuple(moe if config["num_experts"] > 1 and at(index, "expert", 2, 1) else None for index in layers),
        no_rope_layers=frozenset(layers), module_names=_NAMES,
    )  # fmt: skip


def _mamba(config: Mapping[str, Any]) -> MambaConfig:
    hidden_size, rank = config["hidden_size"], config.get("mamba_dt_rank", "auto")
    return MambaConfig(
        channels=config.get("mamba_expand", 2) * hidden_size, state_size=config.get("mamba_d_state", 16),
        taps=config.get("mamba_d_conv", 4), rank=math.ceil(hidden_size / 16) if rank == "auto" else rank,
        bias=bool(config.get("mamba_proj_bias")), convolution_bias=bool(config.get("mamba_conv_bias", True)),
        norms="learned", norm_epsilon=config.get("rms_norm_eps", 1e-6),
    )  # fmt: skip
