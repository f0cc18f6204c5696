"""EXAONE MoE, K-EXAONE (LG 2025): EXAONE 4 with norms before its layers' parts, and DeepSeek's mixtures of experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import deepseek, exaone4
from engine_svc.models.clamped_silu import clamped_silu
from engine_svc.models.config import ModelConfig, MoeConfig, layer_apart
from quire.errors import StartupError

_DEFAULTS: dict[str, Any] = {
    "rms_norm_eps": 1e-5, "sliding_window": 4096, "first_k_dense_replace": 1, "num_shared_experts": 1,
    "routed_scaling_factor": 2.5, "n_group": 1, "topk_group": 1,
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Layers for multi-token prediction are not loaded.

    Raises:
        StartupError: a dense layer is clipped.
    """
    given = {**_DEFAULTS, **config}
    return dataclasses.replace(
        exaone4.config_of(given), norm_placement="before", moe=_mixtures(given), ignored_names=("mtp.",)
    )


def _mixtures(given: Mapping[str, Any]) -> tuple[MoeConfig | None, ...]:
    """Each layer's experts, which may be clipped (K-EXAONE 2)."""
    found, limits = deepseek.mixtures(given), given.get("swiglu_limits")
    if not limits:
        return found
    if any(limit and moe is None for moe, limit in zip(found, limits, strict=True)):
        raise StartupError(f"config.json: swiglu_limits is {limits}, but only layers with experts may be clipped.")
    clipped = [clamped_silu(float(limit)) if limit else None for limit in limits]
    return tuple(
        moe and dataclasses.replace(moe, activation=each, shared_activation=each)
        for moe, each in zip(found, clipped, strict=True)
    )


def multi_token_layer(config: ModelConfig, raw: Mapping[str, Any]) -> ModelConfig:
    """The shape of the first layer for multi-token prediction, which is dense.

    Without a window it does not rotate, as in the model. Facts are from vLLM: Transformers has no such layer.
    """
    kinds, windows = raw.get("mtp_layer_types") or ["full_attention"], raw.get("mtp_sliding_windows")
    window = (windows or [{**_DEFAULTS, **raw}["sliding_window"]])[0] if kinds[0] == "sliding_attention" else None
    return layer_apart(config, None, window, rotates=bool(window) or not config.no_rope_layers)
