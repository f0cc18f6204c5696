"""ModernBERT: pre-norms, rotary positions, a gated feed-forward layer, and windows on two of three layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import activation, rope_parameters
from engine_svc.models.encoder_config import (
    HEAD,
    NOBODYS,
    EncoderConfig,
    HeadConfig,
    HeadLayer,
    encoder_config,
    head_activation,
)

_NAMES = (
    (r"^model\.", ""), (r"^embeddings\.tok_embeddings\.", "embed_tokens."),
    (r"^embeddings\.norm\.", "embedding_norm."), (r"\.attn\.Wqkv\.", ".self_attn.qkv_proj."),
    (r"\.attn\.Wo\.", ".self_attn.o_proj."), (r"\.attn_norm\.", ".input_layernorm."),
    (r"\.mlp_norm\.", ".post_attention_layernorm."), (r"\.mlp\.Wi\.", ".mlp.gate_up_proj."),
    (r"\.mlp\.Wo\.", ".mlp.down_proj."), (r"^final_norm\.", "norm."), (r"^(head|classifier|decoder)\.", NOBODYS),
)  # fmt: skip


def config_of(config: Mapping[str, Any]) -> EncoderConfig:
    """A window reaches half of `local_attention` to either side."""
    layers, period = config["num_hidden_layers"], config.get("global_attn_every_n_layers", 3)
    types = config.get("layer_types") or [
        "sliding_attention" if i % period else "full_attention" for i in range(layers)
    ]
    window, bias = config.get("local_attention", 128) // 2 + 1, bool(config.get("attention_bias"))
    return encoder_config(
        config, norm_placement="before", norms_first_layer=False, has_norm=True,
        norm_bias=bool(config.get("norm_bias")), norm_eps=config.get("norm_eps", 1e-5),
        activation=activation(config.get("hidden_activation", "gelu")), qkv_bias=bias, output_bias=bias,
        mlp_bias=bool(config.get("mlp_bias")), type_vocab_size=0,
        sliding_windows=tuple(window if kind == "sliding_attention" else None for kind in types),
        rope_parameters=_rotation(config, "full_attention", "global_rope_theta", 160_000.0),
        local_rope_parameters=_rotation(config, "sliding_attention", "local_rope_theta", 10_000.0), renames=_NAMES,
    )  # fmt: skip


def _rotation(config: Mapping[str, Any], kind: str, name: str, default: float) -> dict[str, Any]:
    """Rotary settings of one type of layers."""
    found = (config.get("rope_parameters") or {}).get(kind)
    return rope_parameters({"rope_parameters": found, "rope_theta": config.get(name, default)})


def head_of(config: Mapping[str, Any], kind: str, num_labels: int) -> HeadConfig:
    """See bert.head_of."""
    dense = HeadLayer(
        config["hidden_size"], head_activation(config.get("classifier_activation", "gelu")),
        bool(config.get("classifier_bias")), config.get("norm_eps", 1e-5), bool(config.get("norm_bias")),
    )  # fmt: skip
    names = ((r"^head\.dense\.", f"{HEAD}0."), (r"^head\.norm\.", f"{HEAD}0.norm."), (r"^classifier\.", f"{HEAD}1."))
    pooling = "ALL" if kind == "TokenClassification" else str(config.get("classifier_pooling", "cls")).upper()
    return HeadConfig((dense, HeadLayer(num_labels)), names, pooling)
