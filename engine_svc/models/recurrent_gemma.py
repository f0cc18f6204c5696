"""RecurrentGemma and Griffin (Google 2024): gated linear units in two of three layers, windowed attention in others."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import torch

from engine_svc.models.config import ModelConfig, activation, base_config
from engine_svc.models.recurrent_config import GatedUnitsConfig

_MODULES = {
    "temporal_block": "self_attn", "temporal_pre_norm": "input_layernorm", "mlp_block": "mlp",
    "channel_pre_norm": "post_attention_layernorm", "final_norm": "norm",
}  # fmt: skip
_RENAMES = (
    (r"\.rg_lru\.(input|recurrent)_gate_(weight|bias)$", r".\1_gate.\2"),
    (r"\.rg_lru\.recurrent_param$", ".recurrent_param"),
)  # fmt: skip
_LENGTH = 8192  # the length that they were trained with, which configurations do not contain


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Half of each head is rotated; biases are everywhere except on queries, keys and values."""
    layers, size, heads = range(config["num_hidden_layers"]), config["hidden_size"], config["num_attention_heads"]
    types = config.get("block_types") or config.get("_block_types") or ("recurrent", "recurrent", "attention")
    kinds = list(itertools.islice(itertools.cycle(types), len(layers)))
    if wrong := set(kinds) - {"recurrent", "attention"}:
        raise ValueError(f"layers of the kinds {', '.join(sorted(wrong))}")
    activated = activation(config.get("hidden_activation") or "gelu_pytorch_tanh")
    units = GatedUnitsConfig(
        channels=config.get("lru_width") or size, heads=heads, taps=config.get("conv1d_width", 4), activation=activated
    )
    return base_config(
        {
            "max_position_embeddings": _LENGTH, "partial_rotary_factor": 0.5, **config,
            "intermediate_size": config["intermediate_size"] // 2,  # it counts gate and up together
        },
        activation=activated, head_dim=size // heads, qkv_bias=bool(config.get("attention_bias")), output_bias=True,
        mlp_bias=True, norm_offset=1.0, embedding_scale=float(torch.tensor(size**0.5).bfloat16()),
        sliding_windows=(config.get("attention_window_size", 2048),) * len(layers),
        logits_softcap=config.get("logits_soft_cap", 30.0), tie_word_embeddings=config.get("tie_word_embeddings", True),
        recurrent={index: units for index in layers if kinds[index] == "recurrent"}, recurrent_name="self_attn",
        module_names=_MODULES, renames=_RENAMES,
    )  # fmt: skip
