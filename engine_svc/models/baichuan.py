"""Baichuan 1 and 2 (2023): Llama, with ALiBi in place of positions in the models of 13B."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine_svc.models.alibi import alibi_slopes
from engine_svc.models.config import ModelConfig, base_config, by_common_names

_NAMES = {"model_max_length": "max_position_embeddings"}
_MODULES = {"W_pack": "qkv_proj"}
_SIZE_OF_7B, _VOCABULARY_OF_2 = 4096, 125_696


def config_of(config: Mapping[str, Any]) -> ModelConfig:
    """Only sizes tell the models apart, except for the first of 7B. The output layer of version 2 is normalized."""
    is_7b = config["architectures"][0] == "BaiChuanForCausalLM" or config["hidden_size"] == _SIZE_OF_7B
    return base_config(
        by_common_names(config, _NAMES),
        attention_slopes=() if is_7b else alibi_slopes(config["num_attention_heads"]),
        no_rope_layers=frozenset(range(0 if is_7b else config["num_hidden_layers"])),
        head_norm="rows" if config["vocab_size"] == _VOCABULARY_OF_2 else "none", module_names=_MODULES,
    )  # fmt: skip
