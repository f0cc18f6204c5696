"""Kolibri 1 (Aleph Alpha 2026): EXAONE 4's attention, norms on all sides, and many small experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models import glm
from engine_svc.models.config import ModelConfig, MoeConfig, base_config, sliding_windows

_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 4, "head_dim": 128, "sliding_window": 513, "shared_expert_intermediate_size": 512,
    "norm_topk_prob": False,
}  # fmt: skip
# Names in published checkpoints, beside Transformers'.
_NORMS = {**glm.NORMS, "post_attn_norm": "post_attention_layernorm", "post_ffn_norm": "post_feedforward_layernorm"}
_RENAMES = ((r"\.moe\.router\.expert_bias$", ".mlp.gate.e_score_correction_bias"),)


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Layers without a window do not rotate, unless the configuration has no window at all."""
    given = {**_DEFAULTS, **config, "intermediate_size": config["moe_intermediate_size"]}  # no layer is dense
    count, windows = given["num_hidden_layers"], sliding_windows(given, 5)
    still = () if given["sliding_window"] is None else (layer for layer in range(count) if windows[layer] is None)
    moe = MoeConfig(
        given.get("num_experts") or given["num_local_experts"], given["num_experts_per_tok"],
        given["moe_intermediate_size"], bool(given["norm_topk_prob"]), given["shared_expert_intermediate_size"],
        scoring="sigmoid, biased logits", choice_bias=True,
    )  # fmt: skip
    return base_config(
        given, qk_norm="head", norm_placement="around", sliding_windows=windows, moe=(moe,) * count,
        no_rope_layers=frozenset(still), module_names=_NORMS, renames=_RENAMES,
    )  # fmt: skip
