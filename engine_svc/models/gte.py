"""GTE (`new` in Alibaba's own configuration) and Nomic's BERT: BERT with rotary positions and gated feed-forward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.bert import EMBEDDINGS, UNUSED_HEADS
from engine_svc.models.config import activation, rope_parameters
from engine_svc.models.encoder_config import HEAD, EncoderConfig, HeadConfig, HeadLayer, encoder_config
from quire.errors import StartupError

# Names in the checkpoints' own formats, and in that of Transformers.
_NAMES = (
    (r"^(gte|new|nomic_bert|bert|model)\.", ""), (r"^emb_ln\.", "embedding_norm."),
    (r"^encoder\.(layers|layer)\.", "layers."), (r"\.attn\.Wqkv\.", ".self_attn.qkv_proj."),
    (r"\.attn\.out_proj\.", ".self_attn.o_proj."), (r"\.attention\.(qkv|o)_proj\.", r".self_attn.\1_proj."),
    (r"\.(norm1|attn_ln|post_attention_layernorm)\.", ".attention_norm."),
    (r"\.(norm2|mlp_ln|post_mlp_layernorm)\.", ".output_norm."), (r"\.mlp\.up_gate_proj\.", ".mlp.gate_up_proj."),
    (r"\.mlp\.fc11\.", ".mlp.up_proj."), (r"\.mlp\.fc12\.", ".mlp.gate_proj."), (r"\.mlp\.fc2\.", ".mlp.down_proj."),
)  # fmt: skip
# Fields of Nomic's configuration → Transformers' names.
_NOMICS = {
    "n_embd": "hidden_size", "n_head": "num_attention_heads", "n_layer": "num_hidden_layers",
    "n_inner": "intermediate_size", "n_positions": "max_position_embeddings", "layer_norm_epsilon": "layer_norm_eps",
    "activation_function": "hidden_act", "rotary_emb_base": "rope_theta",
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> EncoderConfig:
    """Nomic's BERT has biases only in norms; GTE's feed-forward layer has one only on its output."""
    is_nomic = config["architectures"][0].startswith("NomicBert")
    config = _in_our_words(config) if is_nomic else config
    theta = 1_000.0 if is_nomic else 160_000.0
    return encoder_config(
        config, activation=activation(config.get("hidden_act", "silu" if is_nomic else "gelu")),
        qkv_bias=not is_nomic, output_bias=not is_nomic, mlp_output_bias=not is_nomic, mlp_up_first=True,
        rope_parameters=_rotation({"rope_theta": theta, **config}),
        renames=(*_NAMES, *EMBEDDINGS, *UNUSED_HEADS),
    )  # fmt: skip


def _rotation(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings. Alibaba's `ntk` has another base and slightly lower frequencies.

    max_position_embeddings counts positions after scaling.

    Raises:
        StartupError: it uses an unsupported option.
    """
    found = rope_parameters(config)
    if found["rope_type"] != "ntk":
        return found
    if found.get("mixed_b") is not None:
        raise StartupError("rope_scaling with mixed_b in config.json is not supported.")
    factor, dim = found["factor"], config["hidden_size"] // config["num_attention_heads"]
    return {
        "rope_type": "linear", "rope_theta": found["rope_theta"] * factor, "factor": factor ** (2 / dim),
        "original_max_position_embeddings": 1,
    }  # fmt: skip


def _in_our_words(config: Mapping[str, Any]) -> dict[str, Any]:
    """Translates Nomic's configuration.

    Raises:
        StartupError: it uses an unsupported option.
    """
    found = dict(config)
    for theirs, ours in _NOMICS.items():
        if config.get(theirs) is not None:
            found[ours] = config[theirs]
    wrong = {
        "prenorm": bool(config.get("prenorm")), "qkv_proj_bias": bool(config.get("qkv_proj_bias")),
        "mlp_fc1_bias": bool(config.get("mlp_fc1_bias")), "mlp_fc2_bias": bool(config.get("mlp_fc2_bias")),
        "rotary_emb_interleaved": bool(config.get("rotary_emb_interleaved")),
        "rotary_emb_fraction": config.get("rotary_emb_fraction", 1.0) != 1.0,
        "rotary_scaling_factor": config.get("rotary_scaling_factor") is not None,
        "num_experts": bool(config.get("num_experts")),
    }  # fmt: skip
    if names := [name for name, given in wrong.items() if given]:
        raise StartupError(f"config.json: {names[0]} is {config[names[0]]!r}, which is not supported with NomicBert.")
    return found


def head_of(config: Mapping[str, Any], kind: str, num_labels: int) -> HeadConfig:
    """Reads the head, which is like BERT's; see bert.head_of."""
    if kind == "TokenClassification":
        return HeadConfig((HeadLayer(num_labels),), ((r"^classifier\.", f"{HEAD}0."),), "ALL")
    size = config.get("n_embd") or config["hidden_size"]
    pooler = (r"^(?:(?:gte|new|nomic_bert|bert)\.)?pooler\.dense\.", f"{HEAD}0.")
    return HeadConfig(
        (HeadLayer(size, "tanh"), HeadLayer(num_labels)), (pooler, (r"^classifier\.", f"{HEAD}1.")), "CLS"
    )
