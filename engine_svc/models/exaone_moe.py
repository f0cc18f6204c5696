"""EXAONE MoE, K-EXAONE (LG 2025): EXAONE 4 with norms before its layers' parts, and DeepSeek's mixtures of experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import deepseek, exaone4
from engine_svc.models.config import ModelConfig

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
