"""Qwen3-Next (Alibaba 2025) and Qwen3.5 (2026, text): gated delta nets, gated attention in every fourth layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, MoeConfig, base_config
from engine_svc.models.qwen_moe import mixtures
from engine_svc.models.recurrent_config import DeltaNetConfig


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Every fourth layer attends, unless layer types say otherwise; a quarter of each head is rotated."""
    layers = range(config["num_hidden_layers"])
    bias, interval = bool(config.get("attention_bias")), config.get("full_attention_interval", 4)
    types = config.get("layer_types") or [
        "linear_attention" if (index + 1) % interval else "full_attention" for index in layers
    ]
    delta_net = _delta_net(config)
    moe: tuple[MoeConfig | None, ...] = (None,) * len(layers)
    if config.get("num_experts") or config.get("num_local_experts"):
        moe = mixtures(config, shares_expert=True, renormalize=bool(config.get("norm_topk_prob", True)))
    return base_config(
        {"intermediate_size": 0, "partial_rotary_factor": 0.25, **config},
        head_dim=config.get("head_dim") or 256, qkv_bias=bias, output_bias=bias, qk_norm="head", norm_offset=1.0,
        attention_gates="queries",
        recurrent={index: delta_net for index in layers if types[index] == "linear_attention"}, moe=moe,
        ignored_names=("mtp.", "visual."),  # layers for multi-token prediction and for vision
    )  # fmt: skip


def _delta_net(config: Mapping[str, Any]) -> DeltaNetConfig:
    return DeltaNetConfig(
        key_heads=config.get("linear_num_key_heads", 16), value_heads=config.get("linear_num_value_heads", 32),
        key_dim=config.get("linear_key_head_dim", 128), value_dim=config.get("linear_value_head_dim", 128),
        taps=config.get("linear_conv_kernel_dim", 4), norm_epsilon=config.get("rms_norm_eps", 1e-6),
        form="headwise" if config["architectures"][0] == "Qwen3NextForCausalLM" else "joined",
    )  # fmt: skip
