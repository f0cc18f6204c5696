"""HyperCLOVA X SEED (Naver 2025): Granite with further norms, of outputs before they are scaled and added."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import granite
from engine_svc.models.config import ModelConfig

_NAMES = {
    "post_norm1": "post_attention_layernorm", "post_attention_layernorm": "pre_feedforward_layernorm",
    "post_norm2": "post_feedforward_layernorm",
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Unlike in Granite, logits are multiplied by `logits_scaling`, and scores are divided as usual by default."""
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    scale, factor = config.get("attention_multiplier"), config.get("residual_multiplier", 1.0)
    has_norms = config.get("use_post_norm", True)
    given = {name: value for name, value in config.items() if name != "residual_multiplier" or not has_norms}
    return dataclasses.replace(
        granite.config_of(given),
        attention_scale=head_dim**-0.5 if scale is None else scale, logits_scale=config.get("logits_scaling", 1.0),
        norm_placement="around" if has_norms else "before", output_norm_factor=factor if has_norms else 1.0,
        module_names=_NAMES if has_norms else {},
    )  # fmt: skip
