"""A.X K1 (SK Telecom 2026): DeepSeek V3 with a norm of what each mixture of experts puts out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import deepseek
from engine_svc.models.config import ModelConfig

_DEFAULTS: dict[str, Any] = {
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_shared_experts": 1, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1,
}  # fmt: skip
_NORM = "post_mlp_layernorm"
_RENAMES = ((rf"\.layers\.(\d+)\.{_NORM}\.", rf".layers.\1.mlp.{_NORM}."),)


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Checkpoints have such a norm for dense layers too, which do not use it."""
    found = deepseek.config_of({**_DEFAULTS, **config})
    dense = (index for index, moe in enumerate(found.moe) if moe is None)
    return dataclasses.replace(
        found, renames=_RENAMES, ignored_names=tuple(f".layers.{index}.{_NORM}." for index in dense),
        # Published checkpoints have no bias that affects the choice of experts.
        moe=tuple(moe and dataclasses.replace(moe, output_norm=True, default_bias=0.0) for moe in found.moe),
    )  # fmt: skip
