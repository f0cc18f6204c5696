"""Phi 1, 1.5 and 2 (Microsoft 2023): parallel attention and feed-forward after one layer norm; biases everywhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config
from quire.errors import StartupError

_MODULES = {"dense": "o_proj", "fc1": "fc_in", "fc2": "fc_out", "final_layernorm": "norm"}


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """A part of each head is rotated.

    Raises:
        StartupError: the configuration asks for norms of heads, which no released model has.
    """
    if config.get("qk_layernorm"):
        raise StartupError("config.json sets qk_layernorm, which is not supported; use --model-impl transformers.")
    return base_config(
        {"partial_rotary_factor": 0.5, "hidden_act": "gelu_new", **config},
        qkv_bias=True, output_bias=True, mlp_gated=False, mlp_bias=True, head_bias=True,
        norm="layer", norm_bias=True, norm_eps=config.get("layer_norm_eps", 1e-5), norm_placement="parallel",
        module_names=_MODULES,
    )  # fmt: skip
