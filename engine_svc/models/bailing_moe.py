"""Ling and Ring 1 and 2 (inclusionAI 2025): mixtures of experts with a shared one, since 2 in groups as DeepSeek's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models import deepseek
from engine_svc.models.config import ModelConfig, MoeConfig, base_config

_MODULES = {
    "word_embeddings": "embed_tokens", "attention": "self_attn", "query_key_value": "qkv_proj", "dense": "o_proj",
    "query_layernorm": "q_norm", "key_layernorm": "k_norm",
}  # fmt: skip
_RENAMES = ((r"\.gate\.expert_bias$", ".gate.e_score_correction_bias"),)


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """The first layers of version 2 are dense. Its heads are normalized, and half of each is rotated."""
    bias = bool(config.get("use_bias"))
    is_first = config["architectures"][0] == "BailingMoeForCausalLM"
    return base_config(
        config, qkv_bias=bias or bool(config.get("use_qkv_bias")), output_bias=bias, mlp_bias=bias,
        qk_norm="head" if config.get("use_qk_norm", not is_first) else "none",
        head_norm="columns" if config.get("norm_head") else "none",
        moe=_first_mixtures(config) if is_first else deepseek.mixtures(config),
        module_names=_MODULES, renames=_RENAMES,
    )  # fmt: skip


def _first_mixtures(config: Mapping[str, Any]) -> tuple[MoeConfig | None, ...]:
    size = config["moe_intermediate_size"]
    moe = MoeConfig(
        config["num_experts"], config["num_experts_per_tok"], size, renormalize=bool(config["norm_topk_prob"]),
        shared_size=size * (config.get("num_shared_experts") or 0) or None,
    )  # fmt: skip
    dense = config.get("first_k_dense_replace") or 0
    return tuple(None if index < dense else moe for index in range(config["num_hidden_layers"]))
