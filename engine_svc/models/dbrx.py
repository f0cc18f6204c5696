"""DBRX (Databricks 2024): norms without biases, clipped projections, and a mixture of experts in each layer, whose
matrices are below each other in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.layers.fused_experts import FusedForm
from engine_svc.models import mpt
from engine_svc.models.config import ModelConfig, MoeConfig, activation, base_config, by_common_names
from quire.errors import StartupError

_RENAMES = (
    (r"\.norm_attn_norm\.", "."),
    (r"\.experts\.mlp\.w1$", ".experts.gate_proj"),
    (r"\.experts\.mlp\.v1$", ".experts.up_proj"),
    (r"\.experts\.mlp\.w2$", ".experts.down_proj"),
)


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Most names are MPT's.

    Raises:
        StartupError: the weights of a token's experts are normalized in another way.
    """
    config = by_common_names(config, mpt.SIZES)
    attention, experts = config.get("attn_config") or {}, config.get("ffn_config") or {}
    if (power := experts.get("moe_normalize_expert_weights", 1.0)) not in (None, 1.0):
        raise StartupError(f"config.json: ffn_config has moe_normalize_expert_weights {power!r}; expected 1 or null.")
    size = experts.get("ffn_hidden_size", 3584)
    moe = MoeConfig(
        experts.get("moe_num_experts", 4), experts.get("moe_top_k", 1), size, renormalize=power is not None,
        fused=FusedForm(stacked=True),
    )  # fmt: skip
    rotation = {"rope_theta": attention["rope_theta"]} if "rope_theta" in attention else {}
    return base_config(
        {**rotation, **config, "intermediate_size": size}, num_kv_heads=attention.get("kv_n_heads", 1),
        qkv_clip=attention.get("clip_qkv"), norm="layer", norm_eps=1e-5,
        activation=activation((experts.get("ffn_act_fn") or {}).get("name", "silu")),
        moe=(moe,) * config["num_hidden_layers"], module_names=mpt.MODULES, renames=_RENAMES,
    )  # fmt: skip
