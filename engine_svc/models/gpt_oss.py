"""gpt-oss (OpenAI 2025): attention sinks, windows on every second layer, clamped experts with biases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.layers.fused_experts import FusedForm
from engine_svc.models.config import ModelConfig, MoeConfig, base_config, sliding_windows
from engine_svc.ops.base import ClampedSwish


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """A softmax over the chosen experts' logits equals one over all experts, renormalized over the chosen ones."""
    bias = bool(config.get("attention_bias", True))
    moe = MoeConfig(
        num_experts=config.get("num_local_experts") or config["num_experts"],
        experts_per_token=config.get("num_experts_per_tok") or config["experts_per_token"],
        expert_size=config["intermediate_size"],
        renormalize=True,
        activation=ClampedSwish(config.get("swiglu_alpha", 1.702), config.get("swiglu_limit", 7.0)),
        router_bias=True,
        expert_bias=True,
        fused=FusedForm(transposed=True, interleaved=True),
    )
    return base_config(
        config, moe=(moe,) * config["num_hidden_layers"], sliding_windows=sliding_windows(config, 2),
        qkv_bias=bias, output_bias=bias, attention_sinks="all",
    )  # fmt: skip
