"""Qwen2 (and 1.5) and Qwen3 with mixtures of experts: like the dense models except for feed-forward layers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import qwen2, qwen3
from engine_svc.models.config import ModelConfig, MoeConfig


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Qwen2 has an additional shared expert."""
    family = qwen3 if config["architectures"][0] == "Qwen3MoeForCausalLM" else qwen2
    moe = mixtures(config, shares_expert=family is qwen2, renormalize=bool(config.get("norm_topk_prob")))
    return dataclasses.replace(family.config_of(config), moe=moe)


def mixtures(config: Mapping[str, Any], shares_expert: bool, renormalize: bool) -> tuple[MoeConfig | None, ...]:
    """The mixture of each layer: every `decoder_sparse_step`th layer has one, except `mlp_only_layers`."""
    # Transformers 5 uses another name for Qwen3's number.
    count = config.get("num_experts") or config["num_local_experts"]
    moe = MoeConfig(
        count, config["num_experts_per_tok"], config["moe_intermediate_size"], renormalize,
        config["shared_expert_intermediate_size"] if shares_expert else None, shared_gate=shares_expert,
    )  # fmt: skip
    step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
    return tuple(
        moe if index not in dense and (index + 1) % step == 0 else None for index in range(config["num_hidden_layers"])
    )
