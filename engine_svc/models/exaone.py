"""EXAONE 3, 3.5 and Deep (LG 2024 and 2025): Llama with GPT-2's names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.config import ModelConfig, base_config, by_common_names

_NAMES = {"num_layers": "num_hidden_layers", "activation_function": "hidden_act", "layer_norm_epsilon": "rms_norm_eps"}
_MODULES = {
    "transformer": "model", "wte": "embed_tokens", "h": "layers", "ln_f": "norm", "ln_1": "input_layernorm",
    "ln_2": "post_attention_layernorm", "c_fc_0": "gate_proj", "c_fc_1": "up_proj", "c_proj": "down_proj",
    "out_proj": "o_proj",
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """No biases."""
    return base_config({"rms_norm_eps": 1e-5, **by_common_names(config, _NAMES)}, module_names=_MODULES)
