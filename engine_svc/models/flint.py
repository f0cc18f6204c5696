"""Flint (RecursiveSI 2026): Qwen3 MoE with windows, sinks, and rotation only in layers with a window."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config
from engine_svc.models.qwen_moe import mixtures

_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 4, "head_dim": 128, "sliding_window": 513, "shared_expert_intermediate_size": 1024,
    "norm_topk_prob": True, "mlp_only_layers": (0, 1),
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """All tokens go through the shared expert, without a gate."""
    given = _DEFAULTS | {name: value for name, value in config.items() if value is not None}
    last = given["num_hidden_layers"] - 1
    types = given.get("layer_types") or [
        "full_attention" if index in (0, 1, last) or index % 4 == 1 else "sliding_attention"
        for index in range(last + 1)
    ]
    windows = tuple(given["sliding_window"] if kind == "sliding_attention" else None for kind in types)
    moe = mixtures(given, shares_expert=True, renormalize=bool(given["norm_topk_prob"]))
    bias = bool(given.get("attention_bias"))
    return base_config(
        given, qkv_bias=bias, output_bias=bias, qk_norm="head", attention_sinks="all", sliding_windows=windows,
        no_rope_layers=frozenset(index for index, window in enumerate(windows) if window is None),
        moe=tuple(each and dataclasses.replace(each, scoring="sigmoid", shared_gate=False) for each in moe),
        renames=((r"\.self_attn\.softmax_offset$", ".self_attn.sinks"),),  # in published checkpoints
    )  # fmt: skip
