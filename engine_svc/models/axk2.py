"""A.X K2 (SK Telecom 2026): DeepSeek V3.2 with gates on the outputs of norms and of attention."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import deepseek
from engine_svc.models.config import ModelConfig

_DEFAULTS: dict[str, Any] = {
    "q_lora_rank": 384, "kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64,
    "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5, "first_k_dense_replace": 1,
    "moe_layer_freq": 1, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 16, "gated_norm_rank": 16,
}  # fmt: skip
# Transformers' names, and those of published checkpoints.
_RENAMES = (
    (r"\.self_attn\.q_gate_proj\.", ".self_attn.q_b_proj."),
    (r"layernorm\.(?:mlp\.fc1|W_down)\.", "layernorm.inner."),
    (r"layernorm\.(?:mlp\.fc2|W_up)\.", "layernorm.outer."),
)  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Without groups of experts (A.X K2 Light), all of them are one."""
    given = _DEFAULTS | {name: value for name, value in config.items() if value is not None}
    first, period = given["first_k_dense_replace"], given["moe_layer_freq"]
    types = ["dense" if index < first or index % period else "sparse" for index in range(given["num_hidden_layers"])]
    return dataclasses.replace(
        deepseek.config_of({"mlp_layer_types": types, **given}), attention_gates="queries",
        norm_placement="before, gated", norm_gate_rank=given["gated_norm_rank"], renames=_RENAMES,
    )  # fmt: skip
