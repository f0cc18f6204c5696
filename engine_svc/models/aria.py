"""Aria's language model (Rhymes AI 2024): Llama's layers, each with a mixture of experts and a shared one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.layers.fused_experts import FusedForm
from engine_svc.models import llama
from engine_svc.models.config import ModelConfig, MoeConfig

# How published checkpoints name the matrices of all experts.
_RENAMES = (
    (r"\.experts\.fc1\.weight$", ".experts.gate_up_proj"),
    (r"\.experts\.fc2\.weight$", ".experts.down_proj"),
)


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """A softmax over the chosen experts' logits equals one over all experts, renormalized over the chosen ones."""
    size = config["intermediate_size"]
    moe = MoeConfig(
        config.get("moe_num_experts", 8), config.get("moe_topk", 2), size, renormalize=True,
        shared_size=size * config.get("moe_num_shared_experts", 2), activation="silu", fused=FusedForm(transposed=True),
    )  # fmt: skip
    return dataclasses.replace(llama.config_of(config), moe=(moe,) * config["num_hidden_layers"], renames=_RENAMES)
