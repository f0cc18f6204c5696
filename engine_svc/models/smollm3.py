"""SmolLM 3: Llama without rotation on every fourth layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """`no_rope_layers` has a 1 for each layer that does rotate."""
    count, interval = config["num_hidden_layers"], config.get("no_rope_layer_interval") or 4
    rotates = config.get("no_rope_layers") or [(index + 1) % interval for index in range(count)]
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    types = config.get("layer_types") or ["full_attention" if each else "sliding_attention" for each in rotates]
    bias = bool(config.get("attention_bias"))
    return base_config(
        config, qkv_bias=bias, output_bias=bias, mlp_bias=bool(config.get("mlp_bias")),
        no_rope_layers=frozenset(index for index in range(count) if not rotates[index]),
        sliding_windows=tuple(window if kind == "sliding_attention" else None for kind in types),
        tie_word_embeddings=config.get("tie_word_embeddings", True),
    )  # fmt: skip
