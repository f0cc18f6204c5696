"""DeepSeek MoE 16B (DeepSeek-AI 2024): Llama's attention, and many small experts beside shared ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, MoeConfig, base_config
from quire.errors import StartupError


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """The first layers are dense, and between those with experts there may be others.

    Raises:
        StartupError: experts are scored by anything but a softmax.
    """
    if (scoring := config.get("scoring_func") or "softmax") != "softmax":
        raise StartupError(f"config.json: scoring_func is {scoring!r}; expected softmax.")
    size, bias = config["moe_intermediate_size"], bool(config.get("attention_bias"))
    moe = MoeConfig(
        config["n_routed_experts"], config["num_experts_per_tok"], size, bool(config.get("norm_topk_prob")),
        shared_size=size * (config.get("n_shared_experts") or 0) or None,
    )  # fmt: skip
    first, period = config.get("first_k_dense_replace") or 0, config.get("moe_layer_freq") or 1
    layers = range(config["num_hidden_layers"])
    return base_config(
        config, qkv_bias=bias, output_bias=bias,
        moe=tuple(moe if index >= first and not index % period else None for index in layers),
    )  # fmt: skip
