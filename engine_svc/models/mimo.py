"""MiMo V2 Flash (Xiaomi 2025): values narrower than keys, and layers with a window, which have more key-value heads,
attention sinks and a rotation of their own; mixtures of experts as in DeepSeek V3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from engine_svc.models import deepseek
from engine_svc.models.config import (
    LayerHeads,
    ModelConfig,
    base_config,
    layer_apart,
    local_rotation,
    one_rotation,
    rope_parameters,
    sliding_windows,
)
from quire.errors import StartupError

_DEFAULTS: dict[str, Any] = {
    "num_key_value_heads": 4, "head_dim": 192, "v_head_dim": 128, "sliding_window": 129, "attention_value_scale": 0.707,
    "partial_rotary_factor": 0.334, "rope_theta": 5e6, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0,
    "add_swa_attention_sink_bias": True,
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Published configurations have fields of their own for what differs in layers with a window.

    Raises:
        StartupError: layers with a window differ in their query heads or sizes, or others have sinks too.
    """
    given = {**_DEFAULTS, **{name: value for name, value in config.items() if value is not None}}
    windows, rotation = _windows(given), one_rotation(given)
    count = given.get("swa_num_key_value_heads", 2 * given["num_key_value_heads"])
    local = LayerHeads(count, given["head_dim"], given["num_attention_heads"])
    _check(given)
    return base_config(
        {"rms_norm_eps": given.get("layernorm_epsilon", 1e-5), **rotation}, sliding_windows=windows, local_heads=local,
        rope_parameters=rope_parameters(rotation), local_rope_parameters=_local_rotation(given),
        value_dim=given["v_head_dim"], value_scale=given["attention_value_scale"],
        qkv_bias=bool(given.get("attention_bias")), moe=deepseek.mixtures(_with_types(given)),
        attention_sinks="windowed" if given["add_swa_attention_sink_bias"] else "none", ignored_names=("mtp.",),
        renames=((r"\.attention_sink_bias$", ".sinks"),),
    )  # fmt: skip


def multi_token_layer(config: ModelConfig) -> ModelConfig:
    """The shape of the layers for multi-token prediction: dense, with the model's window.

    Facts are from vLLM: Transformers has no such layers.
    """
    window = next((window for window in config.sliding_windows if window), None)
    renames = (*config.renames, (r"\.pre_mlp_layernorm\.", ".post_attention_layernorm."))
    return replace(layer_apart(config, None, window), renames=renames)


def _check(given: Mapping[str, Any]) -> None:
    same = {
        "swa_num_attention_heads": "num_attention_heads",
        "swa_head_dim": "head_dim",
        "swa_v_head_dim": "v_head_dim",
    }
    for local, whole in same.items():
        if given.get(local, given[whole]) != given[whole]:
            raise StartupError(f"config.json: {local} differs from {whole}, which is not supported.")
    if given.get("add_full_attention_sink_bias"):
        raise StartupError("config.json sets add_full_attention_sink_bias, which is not supported.")


def _windows(given: Mapping[str, Any]) -> tuple[int | None, ...]:
    """By default, the first layer has none, nor has each sixth. `sliding_window_size` counts the tokens before one."""
    window = given["sliding_window_size"] + 1 if "sliding_window_size" in given else given["sliding_window"]
    if pattern := given.get("hybrid_layer_pattern"):
        return tuple(window if each else None for each in pattern)
    found = sliding_windows({**given, "sliding_window": window}, 6)
    return found if given.get("layer_types") else (None, *found[1:])


def _local_rotation(given: Mapping[str, Any]) -> dict[str, Any]:
    found = local_rotation(given, given.get("swa_rope_theta", 10000.0))
    return {"partial_rotary_factor": given["partial_rotary_factor"], **found}


def _with_types(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Which layers have experts: published configurations have a flag for each; by default, all but the first."""
    if flags := given.get("moe_layer_freq"):
        return {**given, "mlp_layer_types": ["sparse" if each else "dense" for each in flags]}
    return {"first_k_dense_replace": 1, **given}
