"""Llama 4 (Meta 2025), the text model: three of four layers attend within chunks, the others do not rotate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.layers.fused_experts import FusedForm
from engine_svc.models.config import ModelConfig, MoeConfig, Temperature, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Experts' weights multiply their inputs."""
    count, bias = config["num_hidden_layers"], bool(config.get("attention_bias"))
    rotating = _rotating(config, count)
    moe = MoeConfig(
        config["num_local_experts"], config["num_experts_per_tok"], config["intermediate_size"], renormalize=False,
        shared_size=config["intermediate_size"], scoring="sigmoid", weighs_inputs=True,
        fused=FusedForm(transposed=True),
    )  # fmt: skip
    mixtures, chunk = _mixtures(config, count), config.get("attention_chunk_size")
    return base_config(
        config, head_dim=config.get("head_dim") or 128, intermediate_size=config["intermediate_size_mlp"],
        moe=tuple(moe if index in mixtures else None for index in range(count)),
        sliding_windows=tuple(chunk if rotates else None for rotates in rotating), windows_are_chunks=True,
        no_rope_layers=frozenset(index for index, rotates in enumerate(rotating) if not rotates),
        rope_interleaved=True,
        qkv_bias=bias, output_bias=bias,
        qk_norm="weightless" if config.get("use_qk_norm", True) else "none",
        temperature=Temperature(config.get("floor_scale", 8192), config.get("attn_scale", 0.1))
        if config.get("attn_temperature_tuning", True) else None,
    )  # fmt: skip


def _rotating(config: Mapping[str, Any], count: int) -> list[bool]:
    """Whether each layer rotates; `no_rope_layers` says the opposite of its name."""
    given = config.get("no_rope_layers")
    interval = config.get("no_rope_layer_interval", 4)
    return [bool(each) for each in given] if given else [bool((index + 1) % interval) for index in range(count)]


def _mixtures(config: Mapping[str, Any], count: int) -> range | list[int]:
    """The layers that have experts."""
    given = config.get("moe_layers")
    step = config.get("interleave_moe_layer_step", 1)
    return given if given is not None else range(step - 1, count, step)
