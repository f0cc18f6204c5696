"""Ernie 4.5 with mixtures of experts (Baidu 2025): otherwise like the dense model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import ernie
from engine_svc.models.config import ModelConfig, MoeConfig


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Every `moe_layer_interval`th layer of a range is a mixture. Layers for multi-token prediction are not loaded."""
    moe = MoeConfig(
        config["moe_num_experts"], config["moe_k"], config["moe_intermediate_size"], renormalize=True, choice_bias=True,
        shared_size=config["moe_intermediate_size"] * (config.get("moe_num_shared_experts") or 0) or None,
    )  # fmt: skip
    count, step = config["num_hidden_layers"], config.get("moe_layer_interval", 1)
    first, last = config.get("moe_layer_start_index", 1), config.get("moe_layer_end_index")
    mixtures = range(first, (count - 1 if last in (None, -1) else last) + 1)
    layers = tuple(moe if index in mixtures and (index + 1) % step == 0 else None for index in range(count))
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return dataclasses.replace(ernie.config_of({**config, "head_dim": head_dim}), moe=layers, ignored_names=(".mtp_",))
