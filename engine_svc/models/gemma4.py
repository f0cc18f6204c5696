"""Gemma 4 (Google 2026), the text model, also of the 12B model, whose images and audio have no encoder (Unified).

Layers without a window have fewer and larger heads than those with one. The small models (E2B, E4B) add inputs by token
id in each layer, and their last layers have no keys and values of their own; of the large ones, one has experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import (
    LayerHeads,
    ModelConfig,
    MoeConfig,
    activation,
    base_config,
    local_rotation,
    one_rotation,
    rope_parameters,
    sliding_windows,
)
from engine_svc.models.gemma_config import TokenInputsConfig
from quire.errors import StartupError

_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512, "num_kv_shared_layers": 0,
    "vocab_size_per_layer_input": 262144,
}  # fmt: skip
_SMALL: dict[str, Any] = {"sliding_window": 512, "hidden_size_per_layer_input": 256}
_UNIFIED: dict[str, Any] = {"sliding_window": 1024, "hidden_size_per_layer_input": 0}
_ROTATION = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """
    Raises:
        StartupError: the layers of a kind differ in their heads, or all tokens attend to later ones.
    """
    own = _UNIFIED if config["architectures"][0] == "Gemma4UnifiedForCausalLM" else _SMALL
    config = _DEFAULTS | own | {name: value for name, value in config.items() if value is not None}
    if config.get("use_bidirectional_attention") == "all":
        raise StartupError("config.json: use_bidirectional_attention is 'all', which generating text does not allow.")
    windows = (*sliding_windows(config, 6)[:-1], None)  # the last layer never has one
    whole, local = _heads(config, windows)
    bias, size, rotation = bool(config.get("attention_bias")), config["hidden_size"], one_rotation(config)
    if "full_attention" not in (config.get("rope_parameters") or {}):
        rotation["rope_parameters"] = _ROTATION
    moe, borrowed = _mixture(config), borrowed_layers(config, windows)
    return base_config(
        rotation, head_dim=whole.size, num_kv_heads=whole.number, local_heads=None if whole == local else local,
        sliding_windows=windows, rope_parameters=rope_parameters(rotation), rotary_dim=whole.size,
        local_rope_parameters=local_rotation(config, 10000.0), attention_scale=1.0, qk_norm="head", value_norm=True,
        keys_are_values=bool(config.get("attention_k_eq_v")), borrowed=borrowed, qkv_bias=bias, output_bias=bias,
        own_sizes=dict.fromkeys(borrowed if config.get("use_double_wide_mlp") else (), 2 * config["intermediate_size"]),
        moe=(moe,) * config["num_hidden_layers"], norm_placement="around, scaled",
        activation=activation(config.get("hidden_activation") or "gelu_pytorch_tanh"),
        embedding_scale=size**0.5, logits_softcap=config.get("final_logit_softcapping"),
        tie_word_embeddings=config.get("tie_word_embeddings", True), token_inputs=_token_inputs(config),
        whole_image_tokens=_image_tokens(config), windows_on_whole_images=True,
        renames=_RENAMES, ignored_names=unused_names(borrowed),
    )  # fmt: skip


def _heads(config: Mapping[str, Any], windows: tuple[int | None, ...]) -> tuple[LayerHeads, LayerHeads]:
    """The heads of keys and values in layers without and with a window.

    Transformers 5.23 writes them by layer, published checkpoints have them in fields of their own.

    Raises:
        StartupError: layers of a kind differ.
    """
    queries = config["num_attention_heads"]
    local = LayerHeads(config["num_key_value_heads"], config["head_dim"], queries)
    by_layer = config.get("per_layer_config")
    if by_layer is None:
        count = config.get("num_global_key_value_heads") if config.get("attention_k_eq_v") else None
        return LayerHeads(count or local.number, config["global_head_dim"], queries), local
    given = {int(layer): fields for layer, fields in by_layer.items()}
    found = [
        LayerHeads(own.get("num_key_value_heads", local.number), own.get("head_dim", local.size), queries)
        for own in (given.get(layer, {}) for layer in range(len(windows)))
    ]
    whole, others = ({heads for heads, window in zip(found, windows, strict=True) if (window is None) is is_whole}
                     for is_whole in (True, False))  # fmt: skip
    if len(whole) > 1 or others - {local}:
        raise StartupError("config.json: per_layer_config differs between layers with the same kind of attention.")
    return whole.pop(), local


def _image_tokens(config: Mapping[str, Any]) -> int:
    """Tokens of the largest image by default, if its tokens attend to all of it; else 0.

    Raises:
        ValueError: it is longer than the windows.
    """
    if config.get("use_bidirectional_attention") != "vision" or "vision_config" not in config:
        return 0
    tokens: int = config.get("vision_soft_tokens_per_image", 280)
    if tokens > config["sliding_window"]:
        raise ValueError(f"an image has {tokens} tokens, more than the sliding_window, {config['sliding_window']}")
    return tokens


def borrowed_layers(config: Mapping[str, Any], windows: tuple[int | None, ...]) -> dict[int, int]:
    """The last layers attend to the keys and values of the last layer of their kind before them."""
    first = len(windows) - config["num_kv_shared_layers"]
    last = {windows[layer]: layer for layer in range(first)}
    return {layer: last[windows[layer]] for layer in range(first, len(windows))}


def _mixture(config: Mapping[str, Any]) -> MoeConfig | None:
    if not config.get("enable_moe_block"):
        return None
    return MoeConfig(
        config["num_experts"], config["top_k_experts"], config["moe_intermediate_size"], renormalize=True,
        expert_scales=True, beside_dense=True,
    )  # fmt: skip


def _token_inputs(config: Mapping[str, Any]) -> TokenInputsConfig | None:
    size, vocab_size = config["hidden_size_per_layer_input"], config["vocab_size_per_layer_input"]
    return TokenInputsConfig(vocab_size, size, config.get("pad_token_id", 0)) if size else None


TOKEN_INPUT_RENAMES = (
    (r"\bembed_tokens_per_layer\b", "token_inputs.embedding"),
    (r"\bper_layer_model_projection\b", "token_inputs.projection"),
    (r"\bper_layer_projection_norm\b", "token_inputs.norm"),
    (r"\.per_layer_input_gate\.", ".token_input.gate."),
    (r"\.per_layer_projection\.", ".token_input.projection."),
    (r"\.post_per_layer_input_norm\.", ".token_input.norm."),
)
_RENAMES = (
    *TOKEN_INPUT_RENAMES,
    (r"\.router\.proj\.", ".mixture.sparse.gate."),
    (r"\.router\.per_expert_scale$", ".mixture.sparse.gate.expert_scales"),
    (r"\.router\.scale$", ".mixture.router_norm.weight"),
    (r"\.experts\.", ".mixture.sparse.experts."),
    (r"\.pre_feedforward_layernorm_2\.", ".mixture.input_norm."),
    (r"\.post_feedforward_layernorm_1\.", ".mixture.dense_norm."),
    (r"\.post_feedforward_layernorm_2\.", ".mixture.output_norm."),
)


def unused_names(borrowed: Mapping[int, int]) -> tuple[str, ...]:
    """Weights for keys and values that checkpoints have even of layers that borrow them."""
    parts = ("k_proj", "v_proj", "k_norm", "v_norm")
    return tuple(f"layers.{layer}.self_attn.{part}." for layer in borrowed for part in parts)
