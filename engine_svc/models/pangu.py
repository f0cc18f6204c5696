"""openPangu Embedded 1B and 7B (Huawei 2025): Llama with biases on attention."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models import llama
from engine_svc.models.config import ModelConfig
from quire.errors import StartupError


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """
    Raises:
        StartupError: it has an option that none of the supported models uses.
    """
    for name in ("interleaved_sliding_window", "param_sink_number", "qk_nope_dim", "qkv_bias"):
        if config.get(name):
            raise StartupError(f"config.json has {name} {config[name]}, which is not supported for openPangu Embedded.")
    return llama.config_of({**config, "attention_bias": config.get("attention_bias") or config.get("bias")})
