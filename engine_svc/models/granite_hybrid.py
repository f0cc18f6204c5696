"""Granite 4 hybrid (IBM 2025): Mamba 2 in most layers, with Granite's multipliers, with or without experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import granite, granite_moe
from engine_svc.models.bamba import mamba2_config
from engine_svc.models.config import ModelConfig

# In models without experts, the feed-forward layer has the names of the shared expert.
_DENSE = {"shared_mlp": "mlp", "input_linear": "gate_up_proj", "output_linear": "down_proj"}


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Layers whose type says so attend, with or without rotation."""
    layers, mamba2 = range(config["num_hidden_layers"]), mamba2_config(config)
    types = config.get("layer_types") or config.get("layers_block_type") or ["mamba"] * len(layers)
    has_experts = bool(config.get("num_local_experts"))
    common = (granite_moe if has_experts else granite).config_of(config)
    return dataclasses.replace(
        common,
        recurrent={index: mamba2 for index in layers if types[index] not in ("attention", "full_attention")},
        no_rope_layers=frozenset() if config.get("position_embedding_type") == "rope" else frozenset(layers),
        intermediate_size=config["intermediate_size"] if has_experts else config["shared_intermediate_size"],
        module_names={} if has_experts else _DENSE,
    )  # fmt: skip
