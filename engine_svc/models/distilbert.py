"""DistilBERT: BERT's layers under other names, without token types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.bert import EMBEDDINGS, UNUSED_HEADS
from engine_svc.models.config import activation
from engine_svc.models.encoder_config import HEAD, NOBODYS, EncoderConfig, HeadConfig, HeadLayer, encoder_config

_LAYERS = (
    (r"^transformer\.layer\.", "layers."), (r"\.attention\.(q|k|v)_lin\.", r".self_attn.\1_proj."),
    (r"\.attention\.out_lin\.", ".self_attn.o_proj."), (r"\.sa_layer_norm\.", ".attention_norm."),
    (r"\.ffn\.lin1\.", ".mlp.fc_in."), (r"\.ffn\.lin2\.", ".mlp.fc_out."), (r"\.output_layer_norm\.", ".output_norm."),
    (r"^vocab_(transform|layer_norm|projector)\.", NOBODYS),
)  # fmt: skip


def config_of(config: Mapping[str, Any]) -> EncoderConfig:
    """The fields of its configuration have names of their own, too."""
    layers, positions = config["n_layers"], config["max_position_embeddings"]
    named = {
        "num_attention_heads": config["n_heads"], "num_hidden_layers": layers, "hidden_size": config["dim"],
        "intermediate_size": config["hidden_dim"],
    }  # fmt: skip
    return encoder_config(
        {**config, **named}, activation=activation(config.get("activation", "gelu")), num_positions=positions,
        qkv_bias=True, output_bias=True, mlp_bias=True, mlp_gated=False, no_rope_layers=frozenset(range(layers)),
        renames=((r"^distilbert\.", ""), *EMBEDDINGS, *_LAYERS, *UNUSED_HEADS),
    )  # fmt: skip


def head_of(config: Mapping[str, Any], kind: str, num_labels: int) -> HeadConfig:
    """See bert.head_of."""
    if kind == "TokenClassification":
        return HeadConfig((HeadLayer(num_labels),), ((r"^classifier\.", f"{HEAD}0."),), "ALL")
    layers = (HeadLayer(config["dim"], "relu"), HeadLayer(num_labels))
    return HeadConfig(layers, ((r"^pre_classifier\.", f"{HEAD}0."), (r"^classifier\.", f"{HEAD}1.")), "CLS")
