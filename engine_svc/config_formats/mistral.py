"""Converts params.json, used by Mistral's own checkpoints, to config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.config_formats.base import converting
from engine_svc.config_formats.mistral_media import with_media
from engine_svc.loader.formats.consolidated import huggingface_module
from quire.errors import StartupError

_NAMES = {
    "dim": "hidden_size", "hidden_dim": "intermediate_size", "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads", "n_kv_heads": "num_key_value_heads", "head_dim": "head_dim",
    "norm_eps": "rms_norm_eps", "vocab_size": "vocab_size", "rope_theta": "rope_theta", "activation": "hidden_act",
    "tied_embeddings": "tie_word_embeddings", "max_position_embeddings": "max_position_embeddings",
    "dtype": "dtype",
}  # fmt: skip
_YARN = {
    "factor": "factor", "original_max_position_embeddings": "original_max_position_embeddings", "beta": "beta_fast",
    "alpha": "beta_slow",
}  # fmt: skip
# Defaults for what params.json omits, which hold for all of these checkpoints; the two tokens hold for all of Mistral's
# vocabularies.
_DEFAULTS = {
    "hidden_act": "silu", "tie_word_embeddings": False, "max_position_embeddings": 128_000, "rope_theta": 10_000.0,
    "dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
# Of models with compressed attention: Mistral 4.
_COMPRESSED = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_EXPERTS = {
    "num_experts": "n_routed_experts", "num_experts_per_tok": "num_experts_per_tok",
    "expert_hidden_dim": "moe_intermediate_size", "num_shared_experts": "n_shared_experts",
    "first_k_dense_replace": "first_k_dense_replace", "routed_scale": "routed_scaling_factor",
    "num_expert_groups": "n_group", "num_expert_groups_per_tok": "topk_group",
}  # fmt: skip


def from_mistral(params: dict[str, Any]) -> dict[str, Any]:
    """Converts the content of params.json to that of config.json.

    Raises:
        StartupError: it has settings that Quire does not support in this format, lacks one, or has one of another type.
    """
    with converting("params.json"):
        return _converted(params)


def _converted(params: dict[str, Any]) -> dict[str, Any]:
    if params.get("use_biases"):
        raise _unsupported("use_biases: biases")
    config: dict[str, Any] = _DEFAULTS | {
        ours: params[name] for name, ours in _NAMES.items() if params.get(name) is not None
    }
    is_compressed = any(params.get(name) for name in _COMPRESSED)
    config |= _compressed(params) if is_compressed else _experts(params.get("moe"))
    config |= _windows(params.get("sliding_window"), config) | _quantization(params.get("quantization"))
    if yarn := params.get("yarn"):
        config["rope_parameters"] = _rope(yarn, config.pop("rope_theta"), is_compressed)
    if scaling := params.get("llama_4_scaling"):
        config |= _growing_queries(scaling, config)
    return with_media(params, config)


def _compressed(params: Mapping[str, Any]) -> dict[str, Any]:
    """
    Raises:
        StartupError: experts are not on all layers but the first ones, or chosen in a way that is not supported.
    """
    moe = params["moe"]
    if moe.get("route_every_n", 1) != 1 or moe.get("use_load_balancing_bias"):
        raise _unsupported("route_every_n or use_load_balancing_bias: other mixtures of experts")
    found = {ours: moe[name] for name, ours in _EXPERTS.items() if moe.get(name) is not None}
    return found | {name: params.get(name) for name in _COMPRESSED} | {
        "architectures": ["Mistral4ForCausalLM"], "model_type": "mistral4", "norm_topk_prob": True,
    }  # fmt: skip


def _unsupported(what: str) -> StartupError:
    return StartupError(
        f"params.json has {what} are not supported in this format. If the model also has a config.json and safetensors "
        "in the Hugging Face format, use those: --config-format hf."
    )


def _experts(moe: Mapping[str, Any] | None) -> dict[str, Any]:
    if not moe:
        return {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    if moe.get("num_shared_experts"):
        raise StartupError("params.json has num_shared_experts: shared experts are not supported in this format.")
    return {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral",
        "num_local_experts": moe["num_experts"], "num_experts_per_tok": moe["num_experts_per_tok"],
    }  # fmt: skip


def _windows(window: int | list[int | None] | None, config: Mapping[str, Any]) -> dict[str, Any]:
    """Sliding windows: one for all layers, or a list that is repeated over the layers, in which null means none."""
    if not isinstance(window, list):
        return {"sliding_window": window}
    if len(sizes := {size for size in window if size}) > 1:
        raise StartupError(f"params.json has sliding windows of {len(sizes)} sizes; only one size is supported.")
    count = config["num_hidden_layers"]
    types = ["sliding_attention" if size else "full_attention" for size in window] * count
    return {"sliding_window": next(iter(sizes), None), "layer_types": types[:count]}


def _rope(yarn: Mapping[str, Any], theta: float, is_compressed: bool) -> dict[str, Any]:
    """With compressed attention, not what is rotated grows, but scores: see DeepSeek's models."""
    found = {"rope_type": "yarn", "rope_theta": theta}
    found |= {ours: yarn[name] for name, ours in _YARN.items() if name in yarn}
    if not yarn.get("apply_scale", True):
        return found | {"attention_factor": 1.0}
    return found | {"mscale_all_dim": 1.0} | ({"mscale": 1.0} if is_compressed else {})


def _growing_queries(scaling: Mapping[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """Ministral 3 and Mistral 4."""
    if config["model_type"] == "mixtral":
        raise StartupError("params.json has both moe and llama_4_scaling, which is not supported.")
    rope = config.get("rope_parameters") or {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    own = {"llama_4_scaling_beta": scaling["beta"]}
    own["original_max_position_embeddings"] = scaling["original_max_position_embeddings"]
    found: dict[str, Any] = {"rope_parameters": rope | own}
    if config["model_type"] == "mistral":
        found |= {"architectures": ["Ministral3ForCausalLM"], "model_type": "ministral3"}
    return found


def _renamed(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of quantization with the modules' names in Hugging Face's layout. Classes and patterns are unchanged."""
    groups = {
        name: {**group, "targets": [*map(huggingface_module, group.get("targets", ()))]}
        for name, group in settings.get("config_groups", {}).items()
    }
    ignored = [*map(huggingface_module, settings.get("ignore", ()))]
    return {**settings, "config_groups": groups, "ignore": ignored}


def _quantization(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    if not settings:
        return {}
    if settings.get("qformat_weight") == "fp8_e4m3":
        scheme = "dynamic" if settings.get("qscheme_act") == "NO_SCALES" else "static"
        return {"quantization_config": {"quant_method": "fp8", "activation_scheme": scheme}}
    if str(settings.get("quant_method", "")).replace("_", "-").lower() == "compressed-tensors":
        return {"quantization_config": _renamed(settings) | {"quant_method": "compressed-tensors"}}
    raise StartupError(f"params.json has quantization {dict(settings)}, which is not supported.")
