"""OLMoE and FlexOlmo (Ai2): mixtures of experts, norms over all query heads and all key heads together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, MoeConfig, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """OLMoE has its other norms before attention and feed-forward, FlexOlmo after them."""
    bias = bool(config.get("attention_bias"))
    moe = MoeConfig(
        config.get("num_experts") or config["num_local_experts"], config["num_experts_per_tok"],
        config["intermediate_size"], bool(config.get("norm_topk_prob")),
    )  # fmt: skip
    return base_config(
        config, moe=(moe,) * config["num_hidden_layers"], qkv_bias=bias, output_bias=bias, qk_norm="all",
        qkv_clip=config.get("clip_qkv"),
        norm_placement="after" if config["architectures"][0] == "FlexOlmoForCausalLM" else "before",
    )  # fmt: skip
