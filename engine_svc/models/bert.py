"""BERT, RoBERTa and XLM-RoBERTa: learned positions, norms of sums, a feed-forward layer without gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.encoder_config import (
    HEAD,
    NOBODYS,
    EncoderConfig,
    HeadConfig,
    HeadLayer,
    encoder_config,
)
from quire.errors import StartupError

# Renames that these families share with others that have similar layers.
EMBEDDINGS = (
    (r"\.gamma$", ".weight"), (r"\.beta$", ".bias"),  # in the first checkpoints
    (r"^embeddings\.word_embeddings\.", "embed_tokens."), (r"^embeddings\.position_embeddings\.", "positions."),
    (r"^embeddings\.token_type_embeddings\.", "types."), (r"^embeddings\.LayerNorm\.", "embedding_norm."),
    (r"^(embeddings\.position_ids|embeddings\.token_type_ids|cls\.|lm_head\.|qa_outputs\.)", NOBODYS),
)  # fmt: skip
UNUSED_HEADS = ((r"^(pooler|classifier|linear|head|decoder|pre_classifier)\.", NOBODYS),)
_LAYERS = (
    (r"^encoder\.layer\.", "layers."), (r"\.attention\.self\.query\.", ".self_attn.q_proj."),
    (r"\.attention\.self\.key\.", ".self_attn.k_proj."), (r"\.attention\.self\.value\.", ".self_attn.v_proj."),
    (r"\.attention\.output\.dense\.", ".self_attn.o_proj."), (r"\.attention\.output\.LayerNorm\.", ".attention_norm."),
    (r"\.intermediate\.dense\.", ".mlp.fc_in."), (r"layers\.(\d+)\.output\.dense\.", r"layers.\1.mlp.fc_out."),
    (r"layers\.(\d+)\.output\.LayerNorm\.", r"layers.\1.output_norm."),
)  # fmt: skip


def config_of(config: Mapping[str, Any]) -> EncoderConfig:
    """RoBERTa's positions begin after that of the padding token."""
    kind = config.get("position_embedding_type") or "absolute"
    if kind != "absolute":
        raise StartupError(
            f"position_embedding_type {kind!r} in config.json is not supported; only absolute is supported."
        )
    positions = config["max_position_embeddings"]
    first = 0 if config["architectures"][0].startswith(("Bert", "HF_ColBERT")) else config.get("pad_token_id", 1) + 1
    return encoder_config(
        config, max_position_embeddings=positions - first, num_positions=positions, first_position=first,
        qkv_bias=True, output_bias=True, mlp_bias=True, mlp_gated=False,
        no_rope_layers=frozenset(range(config["num_hidden_layers"])),
        renames=((r"^(bert|roberta|model)\.", ""), *EMBEDDINGS, *_LAYERS, *UNUSED_HEADS),
    )  # fmt: skip


def head_of(config: Mapping[str, Any], kind: str, num_labels: int) -> HeadConfig:
    """Reads the head; RoBERTa's pooler is part of its classifier.

    Args:
        kind: SequenceClassification or TokenClassification.
    """
    size = config["hidden_size"]
    if kind == "TokenClassification":
        return HeadConfig((HeadLayer(num_labels),), ((r"^classifier\.", f"{HEAD}0."),), "ALL")
    layers = (HeadLayer(size, "tanh"), HeadLayer(num_labels))
    if config["architectures"][0].startswith("Bert"):
        names = ((r"^(?:bert\.)?pooler\.dense\.", f"{HEAD}0."), (r"^classifier\.", f"{HEAD}1."))
    else:
        names = ((r"^classifier\.dense\.", f"{HEAD}0."), (r"^classifier\.out_proj\.", f"{HEAD}1."))
    return HeadConfig(layers, names, "CLS")
