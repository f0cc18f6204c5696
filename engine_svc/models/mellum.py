"""Mellum 2 (JetBrains 2026): Qwen3's layers with experts, some with a sliding window and their own rotation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import qwen3, qwen_moe
from engine_svc.models.config import ModelConfig, layer_apart, local_rotation, one_rotation

_SLIDING = "sliding_attention"


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Layers attend to everything, and have experts, unless the configuration says otherwise for single ones."""
    count = config["num_hidden_layers"]
    kinds = config.get("layer_types") or ["full_attention"] * count
    parts = config.get("mlp_layer_types") or ["sparse"] * count
    window = config.get("sliding_window", 1024)
    experts = qwen_moe.mixtures(config, shares_expert=False, renormalize=bool(config.get("norm_topk_prob", True)))
    return dataclasses.replace(
        qwen3.config_of({"num_key_value_heads": 4, **one_rotation(config)}),
        moe=tuple(moe if part == "sparse" else None for moe, part in zip(experts, parts, strict=True)),
        sliding_windows=tuple(window if kind == _SLIDING else None for kind in kinds),
        local_rope_parameters=local_rotation(config, 10000.0), ignored_names=("mtp.",),
    )  # fmt: skip


def multi_token_layer(config: ModelConfig, raw: Mapping[str, Any]) -> ModelConfig:
    """The shape of the layer for multi-token prediction; by default, it has a window and experts."""
    (kind,), (part,) = raw.get("mtp_layer_types") or [_SLIDING], raw.get("mtp_mlp_layer_types") or ["sparse"]
    moe = next(moe for moe in config.moe if moe) if part == "sparse" else None
    return layer_apart(config, moe, raw.get("sliding_window", 1024) if kind == _SLIDING else None)
