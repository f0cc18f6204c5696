"""Hunyuan 4 (Tencent 2026): sparse attention with gates and sinks, and independent hyper-connections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine_svc.models.clamped_silu import clamped_silu
from engine_svc.models.compression_config import StreamsConfig
from engine_svc.models.config import ModelConfig, attending_layer
from engine_svc.models.deepseek import compressed, indexer_of, mixtures

_RENAMES = (
    (r"\.hc_pre\.hc_", ".hc_"), (r"\.learnable_sink_param$", ".sinks"),
    (r"\.self_attn\.(linear_gate|gate_proj)\.", ".self_attn.g_proj."), (r"\.linear_gate\.", ".gate_proj."),
    (r"\.hc_attn_layer\.hc_", ".attn_hc."),
    (r"\.hc_mlp_layer\.hc_", ".ffn_hc."), (r"\.hc_head\.(hc_head_|hc_)", ".norm."),
)  # fmt: skip


# What configurations may leave out, where it differs from DeepSeek's. Every fourth layer has an indexer, and the first.
_DEFAULTS = {
    "rope_interleave": False, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "index_topk_freq": 4,
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Only the routed experts are clipped."""
    config = {**_DEFAULTS, **config}
    limit = float(config.get("swiglu_limit") or 0.0)
    activation = clamped_silu(limit) if limit > 0 else None
    indexer, count = indexer_of(config), config["hc_mult"]
    return compressed(
        config,
        moe=tuple(moe and replace(moe, activation=activation) for moe in mixtures(config)),
        indexer=indexer and replace(indexer, rotates_last=True, norm_eps=config["rms_norm_eps"]),
        attention_gates="values",
        attention_sinks="all",
        streams=StreamsConfig(count, 1, config["hc_eps"], config.get("hc_magnitude", 2.0)),
        stream_count=count,
        keeps_all_rows=True,
        norm_placement="streams",
        renames=_RENAMES,
        ignored_names=("mtp_layers.",),
    )


def multi_token_layer(config: ModelConfig) -> ModelConfig:
    """The shape of the layer for multi-token prediction: with experts, and without hyper-connections.

    Facts are from vLLM: Transformers has no such layer.
    """
    return replace(attending_layer(config), streams=None, stream_count=1, norm_placement="before")
