"""MiniMax M2 (2025): a mixture of experts on every layer, norms over all query heads and all key heads together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, MoeConfig, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Released configurations give the rotated part of each head as a number of values."""
    moe = MoeConfig(
        config["num_local_experts"], config["num_experts_per_tok"], config["intermediate_size"], renormalize=True,
        scoring="sigmoid", choice_bias=True,
    )  # fmt: skip
    head_dim = config.get("head_dim") or 128
    rotation = {"partial_rotary_factor": config["rotary_dim"] / head_dim} if config.get("rotary_dim") else {}
    return base_config(
        {**config, **rotation}, head_dim=head_dim, qk_norm="all",
        moe=(moe,) * config["num_hidden_layers"],
    )  # fmt: skip
