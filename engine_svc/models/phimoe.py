"""Phi-3.5 MoE (Microsoft 2024): layer norms, biases, and experts chosen by sparsemixer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, MoeConfig, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """For sparsemixer, experts count as near within twice the jitter that the model was trained with."""
    moe = MoeConfig(
        config["num_local_experts"], config["num_experts_per_tok"], config["intermediate_size"], renormalize=False,
        scoring="sparsemixer", near=2 * config.get("router_jitter_noise", 0.01),
    )  # fmt: skip
    layers, bias = config["num_hidden_layers"], bool(config.get("attention_bias"))
    return base_config(
        config, moe=(moe,) * layers, norm="layer", norm_bias=True, norm_eps=config.get("rms_norm_eps", 1e-5),
        qkv_bias=bias, output_bias=bias, head_bias=bool(config.get("lm_head_bias")),
        sliding_windows=(config.get("sliding_window"),) * layers,
    )  # fmt: skip
