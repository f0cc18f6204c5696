"""Gemma 2 and 3 (text): norms around attention and feed-forward, GeGLU, scaled embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, activation, base_config, rope_parameters


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Gemma 2 caps its scores and logits; Gemma 3 norms its heads, and rotates more slowly in layers without window."""
    is_gemma3 = config["architectures"][0] == "Gemma3ForCausalLM"
    window, count = config.get("sliding_window"), config["num_hidden_layers"]
    return base_config(
        _one_rotation(config),
        head_dim=config.get("head_dim") or 256,
        sliding_windows=tuple(window if sliding else None for sliding in _sliding(config, count, is_gemma3)),
        local_rope_parameters=_local_rotation(config) if is_gemma3 else None,
        qkv_bias=bool(config.get("attention_bias")), output_bias=bool(config.get("attention_bias")),
        attention_scale=config["query_pre_attn_scalar"] ** -0.5,
        attention_softcap=config.get("attn_logit_softcapping"),
        logits_softcap=config.get("final_logit_softcapping"),
        qk_norm="head" if is_gemma3 else "none",
        activation=activation(config.get("hidden_activation") or "gelu_pytorch_tanh"),
        embedding_scale=config["hidden_size"] ** 0.5,
        norm_placement="around", norm_offset=1.0,
        tie_word_embeddings=config.get("tie_word_embeddings", True),
    )  # fmt: skip


def _sliding(config: Mapping[str, Any], count: int, is_gemma3: bool) -> list[bool]:
    """Every second layer of Gemma 2, and all but every sixth of Gemma 3, unless the configuration says otherwise."""
    types = config.get("layer_types")
    if types:
        return [kind == "sliding_attention" for kind in types]
    pattern = (config.get("sliding_window_pattern") or 6) if is_gemma3 else 2
    return [bool((index + 1) % pattern) for index in range(count)]


def _one_rotation(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with the rotation of the layers without window only."""
    found = config.get("rope_parameters") or {}
    return dict(config) | ({"rope_parameters": found["full_attention"]} if "full_attention" in found else {})


def _local_rotation(config: Mapping[str, Any]) -> dict[str, Any]:
    found = config.get("rope_parameters") or {}
    if "sliding_attention" in found:
        return rope_parameters({"rope_parameters": found["sliding_attention"]})
    return {"rope_type": "default", "rope_theta": config.get("rope_local_base_freq", 10000.0)}
