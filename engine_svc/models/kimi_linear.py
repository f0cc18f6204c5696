"""Kimi Linear (Moonshot AI 2025): Kimi's delta nets, compressed attention without positions, DeepSeek's mixtures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from engine_svc.models import deepseek
from engine_svc.models.config import ModelConfig, by_common_names
from engine_svc.models.recurrent_config import DeltaNetConfig
from quire.errors import StartupError

_NAMES = {
    "model_max_length": "max_position_embeddings", "moe_renormalize": "norm_topk_prob", "num_expert_group": "n_group",
    "num_experts_per_token": "num_experts_per_tok",
}  # fmt: skip


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """The layers that attend are given by a list of types, or by a list of their numbers, counted from 1.

    Raises:
        StartupError: attention uses positions.
    """
    if not config.get("mla_use_nope", True):
        raise StartupError("config.json sets mla_use_nope to false, but Kimi Linear with positions is not supported.")
    linear, layers = config.get("linear_attn_config") or {}, range(config["num_hidden_layers"])
    attending = linear.get("full_attn_layers") or [index + 1 for index in layers if index and index % 4 == 0]
    types = config.get("layer_types") or [
        "full_attention" if index + 1 in attending else "linear_attention" for index in layers
    ]
    heads = linear.get("num_heads") or config.get("linear_num_heads", 32)
    head_dim = linear.get("head_dim") or config.get("linear_head_dim", 128)
    delta_net = DeltaNetConfig(
        key_heads=heads, value_heads=heads, key_dim=head_dim, value_dim=head_dim, form="kimi",
        taps=linear.get("short_conv_kernel_size") or config.get("linear_conv_kernel_dim", 4),
        norm_epsilon=config.get("rms_norm_eps", 1e-5),
    )  # fmt: skip
    common = deepseek.config_of({
        "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "rms_norm_eps": 1e-5,
        **by_common_names(config, _NAMES), "rope_parameters": {"rope_type": "none"},
    })  # fmt: skip
    recurrent = {index: delta_net for index in layers if types[index] == "linear_attention"}
    return dataclasses.replace(common, recurrent=recurrent, recurrent_name="self_attn")
