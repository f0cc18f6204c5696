"""Gemma (Google): GeGLU, scaled embeddings; in Gemma 2 and 3 (text), norms around attention and feed-forward.

VaultGemma (2025) is Gemma 2 with norms before them only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import (
    ModelConfig,
    activation,
    base_config,
    local_rotation,
    one_rotation,
    rope_parameters,
    sliding_windows,
)

# Fields that configurations may leave out, those of multimodal Gemma 3 models for example.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "Gemma3ForCausalLM": {
        "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "query_pre_attn_scalar": 256, "max_position_embeddings": 131072, "rope_theta": 1e6, "sliding_window": 4096,
    },
    "VaultGemmaForCausalLM": {
        "num_key_value_heads": 4, "query_pre_attn_scalar": 256, "sliding_window": 4096,
        "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    },
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Gemma 2 caps scores and logits; Gemma 3 norms heads, and has a larger rotary base in layers without a window."""
    name = config["architectures"][0]
    if name == "GemmaForCausalLM":
        return base_config(config, **_common(config))
    is_gemma3, is_vault = name == "Gemma3ForCausalLM", name == "VaultGemmaForCausalLM"
    config = {**_DEFAULTS.get(name, {}), **config}
    return base_config(
        one_rotation(config),
        sliding_windows=sliding_windows(config, (config.get("sliding_window_pattern") or 6) if is_gemma3 else 2),
        local_rope_parameters=_local_rotation(config) if is_gemma3 else None,
        rope_parameters=_rotation(config),
        attention_scale=config["query_pre_attn_scalar"] ** -0.5,
        attention_softcap=config.get("attn_logit_softcapping"),
        logits_softcap=config.get("final_logit_softcapping"),
        qk_norm="head" if is_gemma3 else "none", norm_placement="before" if is_vault else "around",
        module_names={"pre_feedforward_layernorm": "post_attention_layernorm"} if is_vault else {},
        whole_image_tokens=_image_tokens(config) if is_gemma3 else 0, **_common(config),
    )  # fmt: skip


def _common(config: Mapping[str, Any]) -> dict[str, Any]:
    bias = bool(config.get("attention_bias"))
    return {
        "head_dim": config.get("head_dim") or 256,
        "qkv_bias": bias,
        "output_bias": bias,
        # Some configurations of the first Gemma say `gelu` but mean the tanh approximation.
        "activation": activation(config.get("hidden_activation") or "gelu_pytorch_tanh"),
        "embedding_scale": config["hidden_size"] ** 0.5,
        "norm_offset": 1.0,
        "tie_word_embeddings": config.get("tie_word_embeddings", True),
    }


def _image_tokens(config: Mapping[str, Any]) -> int:
    """Tokens of an image, which attend to all of it, beyond any window; 0 if the model reads text only.

    Raises:
        ValueError: an image is longer than the windows.
    """
    tokens: int = config.get("mm_tokens_per_image", 256) if "vision_config" in config else 0
    if tokens > config["sliding_window"]:
        raise ValueError(f"mm_tokens_per_image is {tokens}, more than the sliding_window, {config['sliding_window']}")
    return tokens


def _rotation(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotation of layers without a window. `max_position_embeddings` counts positions after scaling."""
    found = rope_parameters(one_rotation(config))
    if found["rope_type"] == "linear":
        found.setdefault("original_max_position_embeddings", config["max_position_embeddings"] / found["factor"])
    return found


def _local_rotation(config: Mapping[str, Any]) -> dict[str, Any]:
    return local_rotation(config, config.get("rope_local_base_freq", 10000.0))
