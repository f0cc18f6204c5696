"""LFM2 (Liquid AI 2025): short convolutions in most layers, attention in some, mixtures of experts in larger models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, MoeConfig, base_config
from engine_svc.models.recurrent_config import ShortConvolutionConfig

LFM_MODULES = {
    "operator_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "embedding_norm": "norm",
    "q_layernorm": "q_norm", "k_layernorm": "k_norm",
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Layers attend if their type says so, or if `full_attn_idxs` lists them."""
    layers = range(config["num_hidden_layers"])
    attending = config.get("full_attn_idxs")
    types = config.get("layer_types") or [
        "full_attention" if attending is None or index in attending else "conv" for index in layers
    ]
    convolution = ShortConvolutionConfig(taps=config.get("conv_L_cache", 3), bias=bool(config.get("conv_bias")))
    is_mixture = "num_experts" in config
    return base_config(
        {"intermediate_size": None, **config},
        intermediate_size=config["intermediate_size"] if is_mixture else _intermediate_size(config), qk_norm="head",
        norm_eps=config.get("norm_eps", 1e-5), module_names=LFM_MODULES,
        tie_word_embeddings=config.get("tie_embedding", config.get("tie_word_embeddings", True)),
        recurrent={index: convolution for index in layers if types[index] == "conv"},
        moe=_mixtures(config) if is_mixture else (None,) * len(layers),
    )  # fmt: skip


def _intermediate_size(config: Mapping[str, Any]) -> int:
    """The feed-forward size; configurations give it before it is reduced by a third and rounded up to a multiple."""
    size = int(config.get("block_ff_dim") or config["intermediate_size"])
    if not config.get("block_auto_adjust_ff_dim", True):
        return size
    multiplier, multiple = config.get("block_ffn_dim_multiplier", 1.0), config.get("block_multiple_of", 256)
    size = int((1.0 if multiplier is None else multiplier) * int(2 * size / 3))
    return -(-size // multiple) * multiple


def _mixtures(config: Mapping[str, Any]) -> tuple[MoeConfig | None, ...]:
    moe = MoeConfig(
        config["num_experts"], config["num_experts_per_tok"], config["moe_intermediate_size"],
        renormalize=bool(config.get("norm_topk_prob", True)), scoring="sigmoid",
        choice_bias=bool(config.get("use_expert_bias", True)), scale=float(config.get("routed_scaling_factor", 1.0)),
    )  # fmt: skip
    dense = config.get("num_dense_layers", 2)
    return tuple(None if index < dense else moe for index in range(config["num_hidden_layers"]))
