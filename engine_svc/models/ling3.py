"""Ling 3.0 (inclusionAI 2026): Kimi's delta nets, compressed attention with gated heads, DeepSeek's mixtures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import deepseek
from engine_svc.models.config import ModelConfig, by_common_names
from engine_svc.models.recurrent_config import DeltaNetConfig
from quire.errors import StartupError

# Its own names, and Transformers'.
_NAMES = {
    "model_max_length": "max_position_embeddings", "moe_renormalize": "norm_topk_prob", "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
}  # fmt: skip
_RENAMES = (
    (r"\.word_embeddings\.", ".embed_tokens."), (r"\.attention\.", ".self_attn."),
    (r"\.self_attn\.dense\.", ".self_attn.o_proj."), (r"\.gate\.expert_bias$", ".gate.e_score_correction_bias"),
)  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """In each group of layers, the last one attends.

    Raises:
        StartupError: states decay without a bound, or attention uses no positions.
    """
    if not config.get("kda_safe_gate", True):
        raise StartupError("config.json sets kda_safe_gate to false, which is not supported for Ling 3.0.")
    if config.get("use_mla_nope"):
        raise StartupError("config.json sets use_mla_nope, but Ling 3.0 without positions is not supported.")
    # Only checkpoints as published may have one (Ling 3.0 Tiny): Transformers' models have none.
    query_rank = config.get("q_lora_rank") if config["architectures"][0] == "BailingMoeV3ForCausalLM" else None
    period, layers = config.get("layer_group_size", 6), range(config["num_hidden_layers"])
    types = config.get("layer_types") or [
        "full_attention" if (index + 1) % period == 0 else "linear_attention" for index in layers
    ]
    heads = config["num_attention_heads"]
    head_dim = config.get("linear_head_dim") or config["head_dim"]  # the latter is another one in Transformers' files
    delta_net = DeltaNetConfig(
        key_heads=heads, value_heads=heads, key_dim=head_dim, value_dim=head_dim, form="bounded",
        taps=config.get("short_conv_kernel_size", 4), norm_epsilon=config["rms_norm_eps"],
        lower_bound=float(config.get("kda_lower_bound", -5.0)),
    )  # fmt: skip
    common = deepseek.config_of({
        "first_k_dense_replace": 2, **by_common_names(config, _NAMES), "q_lora_rank": query_rank,
        "rope_interleave": True,
    })  # fmt: skip
    return dataclasses.replace(
        common, recurrent={index: delta_net for index in layers if types[index] == "linear_attention"},
        recurrent_name="self_attn", attention_gates="heads", renames=_RENAMES,
    )  # fmt: skip
