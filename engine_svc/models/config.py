"""A checkpoint's config.json as the models need it. Read as data: no code of a checkpoint ever runs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from quire.errors import StartupError


@dataclass(frozen=True)
class MoeConfig:
    """A mixture of experts."""

    num_experts: int
    experts_per_token: int
    expert_size: int  # features inside one expert
    renormalize: bool  # the chosen experts' weights are made to sum to one
    shared_size: int | None = None  # features of one more expert, that all tokens go through


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a decoder-only model."""

    architecture: str
    dtype: str  # of the checkpoint
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    tie_word_embeddings: bool
    rope_parameters: Mapping[str, Any]
    sliding_windows: tuple[int | None, ...]  # of each layer
    qkv_bias: bool
    output_bias: bool  # of the attention's output projection
    mlp_bias: bool
    qk_norm: bool
    moe: tuple[MoeConfig | None, ...]  # of each layer; None: dense


def read_config(folder: Path, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """config.json with the user's changes.

    Raises:
        StartupError: there is none, or it is not JSON, or it asks for what is not supported.
    """
    path = folder / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StartupError(f"{folder} is no model folder: it has no config.json.") from None
    except (OSError, ValueError) as error:
        raise StartupError(f"{path} cannot be read: {error}") from error
    config |= overrides
    if config.get("quantization_config"):
        raise StartupError(
            f"{folder} is quantized ({config['quantization_config'].get('quant_method')}); not supported."
        )
    if config.get("hidden_act", "silu") != "silu":
        raise StartupError(f"hidden_act {config['hidden_act']!r} is not supported; supported is silu.")
    return dict(config)


def base_config(config: Mapping[str, Any], **family: Any) -> ModelConfig:
    """The fields that every family names alike, and those that the family gives."""
    heads = config["num_attention_heads"]
    fields: dict[str, Any] = {
        "architecture": config["architectures"][0],
        "dtype": config.get("dtype") or config.get("torch_dtype") or "float32",
        "vocab_size": config["vocab_size"],
        "hidden_size": config["hidden_size"],
        "intermediate_size": config["intermediate_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": heads,
        "num_kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
        "max_position_embeddings": config["max_position_embeddings"],
        "rms_norm_eps": config.get("rms_norm_eps", 1e-6),
        "tie_word_embeddings": config.get("tie_word_embeddings", False),
        "rope_parameters": rope_parameters(config),
        "sliding_windows": (None,) * config["num_hidden_layers"],
        "moe": (None,) * config["num_hidden_layers"],
        "qkv_bias": False, "output_bias": False, "mlp_bias": False, "qk_norm": False,
    }  # fmt: skip
    return ModelConfig(**(fields | family))


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings, from `rope_parameters` (Transformers 5) or `rope_theta` and `rope_scaling` (4).

    Raises:
        StartupError: they differ between layers or rotate a part of the head only.
    """
    found = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if any(isinstance(value, Mapping) for value in found.values()):
        raise StartupError("rope_parameters that differ between layers are not supported.")
    found.setdefault("rope_type", found.pop("type", "default"))
    found.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    if found.get("partial_rotary_factor", config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise StartupError("partial_rotary_factor other than 1 is not supported.")
    return found


def windows_by_type(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Sliding windows of the Qwen families: by layer_types, or on the layers from max_window_layers on."""
    count, window = config["num_hidden_layers"], config.get("sliding_window")
    if not config.get("use_sliding_window") or window is None:
        return (None,) * count
    types = config.get("layer_types")
    if types:
        return tuple(window if kind == "sliding_attention" else None for kind in types)
    first = config.get("max_window_layers", 28)
    return tuple(window if index >= first else None for index in range(count))
