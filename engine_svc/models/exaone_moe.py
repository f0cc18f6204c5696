"""EXAONE MoE, K-EXAONE (LG 2025): EXAONE 4 with norms before its layers' parts, and DeepSeek's mixtures of experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import deepseek, exaone4
from engine_svc.models.config import ModelConfig, layer_apart

_DEFAULTS: dict[str, Any] = {
    "rms_norm_eps": 1e-5, "sliding_window": 4096, "first_k_dense_replace": 1, "num_shared_experts": 1,
    "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1,
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Layers for multi-token prediction are not loaded."""
    given = {**_DEFAULTS, **config}
    return dataclasses.replace(
        exaone4.config_of(given), norm_placement="before", moe=deepseek.mixtures(given), ignored_names=("mtp.",)
    )


def multi_token_layer(config: ModelConfig, raw: Mapping[str, Any]) -> ModelConfig:
    """The shape of the first layer for multi-token prediction, which is dense.

    Without a window it does not rotate, as in the model. Facts are from vLLM: Transformers has no such layer.
    """
    kinds, windows = raw.get("mtp_layer_types") or ["full_attention"], raw.get("mtp_sliding_windows")
    window = (windows or [{**_DEFAULTS, **raw}["sliding_window"]])[0] if kinds[0] == "sliding_attention" else None
    return layer_apart(config, None, window, rotates=bool(window) or not config.no_rope_layers)
