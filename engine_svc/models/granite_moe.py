"""Granite 3 with mixtures of experts (IBM), some with a shared expert: otherwise like the dense model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import granite
from engine_svc.models.config import ModelConfig, MoeConfig


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """A softmax over the chosen experts' logits equals one over all experts, renormalized over the chosen ones."""
    moe = MoeConfig(
        config["num_local_experts"], config["num_experts_per_tok"], config["intermediate_size"], renormalize=True,
        shared_size=config.get("shared_intermediate_size") or None,
    )  # fmt: skip
    return dataclasses.replace(granite.config_of(config), moe=(moe,) * config["num_hidden_layers"])
