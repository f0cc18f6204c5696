"""OLMo 2 and 3: norms after attention and feed-forward, and norms over all query heads and all key heads together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config, local_rotation, one_rotation, sliding_windows, theta_of


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Biases are optional. OLMo 3 has windows on three of four layers, whose positions are not scaled."""
    bias = bool(config.get("attention_bias"))
    windows: dict[str, Any] = {}
    if config["architectures"][0] == "Olmo3ForCausalLM":
        windows["sliding_windows"] = sliding_windows(config, 4)
        windows["local_rope_parameters"] = local_rotation(config, theta_of(config))
    return base_config(
        one_rotation(config), qkv_bias=bias, output_bias=bias, qk_norm="all", norm_placement="after", **windows
    )
