"""JetMoE (Shen et al. 2024): experts in attention, too, which project queries and outputs for all key-value heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, MoeConfig, activation, base_config

_RENAMES = (
    (r"\.self_attention\.experts\.input_linear\.", ".self_attn.q_proj."),
    (r"\.self_attention\.experts\.output_linear\.", ".self_attn.o_proj."),
    (r"\.self_attention\.experts\.bias$", ".self_attn.o_proj.bias"),
    (r"\.self_attention\.experts\.router\.layer\.", ".self_attn.choice."),
    (r"\.self_attention\.kv_proj\.", ".self_attn.qkv_proj."),
)  # fmt: skip
_NORM_EPS = 1e-6  # of layers, whatever the configuration says


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Attention and feed-forward have as many experts, of which each token chooses as many for either."""
    experts, chosen = config["num_local_experts"], config["num_experts_per_tok"]
    moe = MoeConfig(experts, chosen, config["intermediate_size"], renormalize=True, output_bias=True)
    given = {**config, "num_attention_heads": config["num_key_value_heads"] * chosen}
    return base_config(
        given, head_dim=config.get("kv_channels", 128), moe=(moe,) * config["num_hidden_layers"], query_experts=True,
        output_bias=True, activation=activation(config.get("activation_function", "silu")), norm_eps=_NORM_EPS,
        last_norm_eps=config.get("rms_norm_eps", 1e-6), tie_word_embeddings=config.get("tie_word_embeddings", True),
        renames=_RENAMES,
    )  # fmt: skip
